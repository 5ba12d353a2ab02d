"""Speculative decoding in the native engine: the same tokens, from the same distribution, in fewer passes."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.runner.contracts.carriers import RequestOptions
from rlrun.runner.engines.native.engine import drafts as drafts_module
from rlrun.runner.engines.native.engine import loading, speculation
from rlrun.runner.engines.native.engine.drafts import Drafts, History
from rlrun.runner.engines.native.engine.requests import SampleInProgress, group_samples
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.engine.speculation import FREE_TOKENS, MAX_ROWS
from tests.runner.engines.engine_cases import MakeScheduler, new_sample, random_prompts, run
from tests.tiny_models import make_tiny_model

PROMPTS = random_prompts(8, seed=3, shortest=4)
Guess = Callable[[History, int], list[int]]


def copies(samples: list[SampleInProgress]) -> list[SampleInProgress]:
    """The same requests again."""
    return [SampleInProgress(s.id, s.prompt, s.params, s.seed, options=s.options) for s in samples]


def same_tokens(ours: list[SampleInProgress], theirs: list[SampleInProgress]) -> None:
    """Both generated the same, apart from rounding of the log-probs."""
    for a, b in zip(ours, theirs, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert a.finish == b.finish
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=1e-4)
        assert [mask.tolist() for mask in a.masks] == [mask.tolist() for mask in b.masks]
        np.testing.assert_allclose(a.mask_log_probs, b.mask_log_probs, atol=1e-4)


def counts(samples: list[SampleInProgress]) -> tuple[int, int]:
    """How many tokens were drafted, and how many accepted."""
    return sum(s.drafted for s in samples), sum(s.accepted for s in samples)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every guess becomes a draft, however unlikely it is, from a sample's first token on."""
    monkeypatch.setattr(speculation, "FIRST_DRAFT", 0)
    monkeypatch.setattr(Drafts, "reliability", lambda self, matched: 1.0)


@pytest.fixture
def guess_from(monkeypatch: pytest.MonkeyPatch, always: None) -> Callable[[list[SampleInProgress]], None]:
    """`guess_from(samples)`: drafts are what these samples generated, with every fifth token wrong, so that
    drafts end in all possible places.
    """

    def install(known: list[SampleInProgress]) -> None:
        answers = [s.prompt.tolist() + s.tokens.tolist() for s in known]

        def guess(self: Drafts, history: History, count: int) -> list[int]:
            own = history.texts.prompt.tolist() + history.text
            answer = next((a for a in answers if a[: len(own)] == own), own)
            tokens = answer[len(own) : len(own) + count]
            return [(t + 1) % 300 if (len(own) + k) % 5 == 0 else t for k, t in enumerate(tokens)]

        monkeypatch.setattr(Drafts, "guess", guess)

    return install


@pytest.mark.parametrize("draft_tokens", [1, 4, 15])
def test_greedy_tokens_are_the_same(
    make_scheduler: MakeScheduler,
    guess_from: Callable[[list[SampleInProgress]], None],
    draft_tokens: int,
) -> None:
    samples = [new_sample(prompt, temperature=0, max_new_tokens=30) for prompt in PROMPTS]
    plain = run(make_scheduler(), copies(samples))
    guess_from(plain)
    speculated = run(make_scheduler(draft_tokens=draft_tokens), copies(samples))
    same_tokens(speculated, plain)
    drafted, accepted = counts(speculated)
    assert 0 < accepted < drafted
    assert counts(plain) == (0, 0)


@pytest.mark.parametrize("family", ["gemma3_text", "glm_moe_dsa"])
def test_drafts_of_layers_whose_queries_do_not_see_all_keys(
    family: str,
    make_scheduler: MakeScheduler,
    guess_from: Callable[[list[SampleInProgress]], None],
    tmp_path: Path,
) -> None:
    """Windows, by transformers' layers, and the keys that an indexer chooses."""
    folder = make_tiny_model(tmp_path, family, scale=0.1, pad_token_id=None)
    samples = [new_sample(prompt, temperature=0, max_new_tokens=30) for prompt in PROMPTS]
    plain = run(make_scheduler(folder), copies(samples))
    guess_from(plain)
    speculated = run(make_scheduler(folder, draft_tokens=4), copies(samples))
    same_tokens(speculated, plain)
    drafted, accepted = counts(speculated)
    assert 0 < accepted < drafted


LIMITS: dict[str, dict[str, Any]] = {
    "whole vocabulary": {},
    "temperature": {"temperature": 0.7},
    "top-k": {"top_k": 20},
    "top-p and top-k": {"top_p": 0.9, "top_k": 50, "temperature": 1.3},
    "minimum length": {"min_new_tokens": 30},
    "stop tokens": {"stop_token_ids": list(range(100, 110))},
    "stop strings": {"stop": ("e", "on")},
}


@pytest.mark.parametrize("limits", LIMITS)
def test_sampled_tokens_are_the_same(
    make_scheduler: MakeScheduler,
    guess_from: Callable[[list[SampleInProgress]], None],
    limits: str,
) -> None:
    params: dict[str, Any] = {"max_new_tokens": 40} | LIMITS[limits]
    samples = [new_sample(p, seed=10 * i + k, **params) for i, p in enumerate(PROMPTS[:4]) for k in range(2)]
    for sample in samples:
        sample.options = RequestOptions(return_sampling_mask="top-" in limits)
    plain = run(make_scheduler(), copies(samples))
    guess_from(plain)
    speculated = run(make_scheduler(draft_tokens=6), copies(samples))
    same_tokens(speculated, plain)
    drafted, accepted = counts(speculated)
    assert 0.3 * drafted < accepted < drafted
    if "stop" in limits:
        assert any(s.finish and s.finish["type"] == "stop" for s in speculated)


def test_tokens_have_the_distribution_of_the_policy(
    make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch, always: None
) -> None:
    """Drafts that are always the same tokens change neither the draws in their place nor those behind."""
    params: dict[str, Any] = {"max_new_tokens": 4, "temperature": 0.3, "ignore_eos": True}
    likely = run(make_scheduler(), [new_sample(PROMPTS[0], 0, **params | {"temperature": 0})])[0]
    fixed = likely.tokens[1:].tolist()
    monkeypatch.setattr(Drafts, "guess", lambda self, history, count: fixed[len(history.text) - 1 :][:count])

    def tokens(first_seed: int, draft_tokens: int) -> tuple[list[list[int]], list[SampleInProgress]]:
        scheduler = make_scheduler(max_running=40, draft_tokens=draft_tokens)
        samples = [new_sample(PROMPTS[0], first_seed + k, **params) for k in range(1200)]
        run(scheduler, samples)
        return [list(column) for column in np.stack([s.tokens for s in samples]).T], samples

    plain, _ = tokens(0, 0)
    speculated, samples = tokens(1_000_000, 3)
    drafted, accepted = counts(samples)
    assert 0.02 * drafted < accepted < 0.9 * drafted
    for ours, theirs in zip(speculated, plain, strict=True):
        assert abs(two_sample_chi_square(ours, theirs)) < 4


def two_sample_chi_square(ours: list[int], theirs: list[int]) -> float:
    """The statistic in standard deviations from its mean; tokens seen less than 10 times are pooled."""
    both = np.stack([np.bincount(tokens, minlength=400) for tokens in (ours, theirs)]).astype(float)
    rare = both.sum(0) < 10
    cells = np.concatenate([both[:, ~rare], both[:, rare].sum(1, keepdims=True)], 1)
    cells = cells[:, cells.sum(0) > 0]
    freedom = cells.shape[1] - 1
    assert freedom > 5
    return float((((cells[0] - cells[1]) ** 2 / cells.sum(0)).sum() - freedom) / (2 * freedom) ** 0.5)


def test_every_kind_of_attention_verifies_drafts(
    make_scheduler: MakeScheduler, operations: str, guess_from: Callable[[list[SampleInProgress]], None]
) -> None:
    samples = [new_sample(p, i, max_new_tokens=20, ignore_eos=True) for i, p in enumerate(PROMPTS[:2])]
    plain = run(make_scheduler(), copies(samples))
    guess_from(plain)
    speculated = run(make_scheduler(draft_tokens=9), copies(samples))
    same_tokens(speculated, plain)
    assert counts(speculated)[1] > 20


def repeated_samples() -> list[SampleInProgress]:
    """Samples of one prompt that begin alike, to be run one after the other: later ones copy earlier ones."""
    return [
        new_sample(PROMPTS[0], k, temperature=0, max_new_tokens=40 + 10 * k, ignore_eos=True)
        for k in range(3)
    ]


def test_the_same_batch_gives_the_same_bits(make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler(max_running=1, draft_tokens=5)
    first, second = (run(scheduler, repeated_samples()) for _ in range(2))
    assert counts(first)[1] > 20
    assert [counts([s]) for s in first] == [counts([s]) for s in second]  # nothing is left of the first batch
    assert counts(first[:1]) == (0, 0)
    for a, b in zip(first, second, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert a.log_probs.tolist() == b.log_probs.tolist()


def test_a_small_cache_loses_no_block(
    make_scheduler: MakeScheduler, guess_from: Callable[[list[SampleInProgress]], None]
) -> None:
    samples = [
        new_sample(p, 10 * i + k, max_new_tokens=40) for i, p in enumerate(PROMPTS[:3]) for k in range(2)
    ]
    plain = run(make_scheduler(), copies(samples))
    guess_from(plain)
    scheduler = make_scheduler(max_cache_tokens=130, draft_tokens=15)
    total = scheduler._pool.free
    speculated = run(scheduler, copies(samples))
    assert scheduler._pool.free == total
    assert sum(s.retractions for s in speculated) > 0
    same_tokens(speculated, plain)


def test_retraction_and_new_weights_in_the_middle(
    make_scheduler: MakeScheduler, guess_from: Callable[[list[SampleInProgress]], None]
) -> None:
    samples = [new_sample(p, i, max_new_tokens=40, ignore_eos=True) for i, p in enumerate(PROMPTS[:4])]
    plain = run(make_scheduler(), copies(samples))
    guess_from(plain)
    scheduler = make_scheduler(draft_tokens=2)
    weights = scheduler.model.weights
    speculated = copies(samples)
    scheduler.add(group_samples(speculated))
    for number in range(1, 5):
        for _ in range(2):
            scheduler.step()
        scheduler.set_weights(weights, number)
        if number % 2:
            scheduler.retract_all()
    while scheduler.busy:
        scheduler.step()
    same_tokens(speculated, plain)
    for sample in speculated:
        assert [version for version, _, _ in sample.spans] == [0, 1, 2, 3, 4]
        assert sample.spans[-1][2] == 40


def test_kept_samples_hold_right_tokens_only(
    make_scheduler: MakeScheduler, guess_from: Callable[[list[SampleInProgress]], None]
) -> None:
    samples = [new_sample(p, i, max_new_tokens=33, ignore_eos=True) for i, p in enumerate(PROMPTS[:3])]
    scheduler = make_scheduler(kept_samples=4, draft_tokens=7)
    guess_from(run(make_scheduler(), copies(samples)))
    first = run(scheduler, copies(samples))
    assert counts(first)[1] > 0
    turns = [
        new_sample([*s.prompt.tolist(), *s.tokens.tolist(), 5, 6], seed=7, max_new_tokens=20) for s in first
    ]
    again = run(scheduler, copies(turns))
    assert all(s.cached_tokens > 32 for s in again)
    same_tokens(again, run(make_scheduler(), copies(turns)))


def test_experts_of_right_tokens_are_reported(
    make_scheduler: MakeScheduler,
    tmp_path: Path,
    guess_from: Callable[[list[SampleInProgress]], None],
) -> None:
    folder = make_tiny_model(tmp_path, "qwen3_moe")
    samples = [new_sample(p, i, max_new_tokens=30, stop_token_ids=(7, 70)) for i, p in enumerate(PROMPTS[:3])]
    for sample in samples:
        sample.options = RequestOptions(return_routed_experts=True)
    plain = run(make_scheduler(folder), copies(samples))
    guess_from(plain)
    speculated = run(make_scheduler(folder, draft_tokens=6), copies(samples))
    same_tokens(speculated, plain)
    assert counts(speculated)[1] > 0
    for ours, theirs in zip(speculated, plain, strict=True):
        assert np.concatenate(ours.experts).tolist() == np.concatenate(theirs.experts).tolist()


def test_a_large_batch_has_no_drafts(
    make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch, always: None
) -> None:
    monkeypatch.setattr(Drafts, "guess", lambda self, history, count: [5] * count)
    rows = MAX_ROWS * FREE_TOKENS["cpu"] + 1
    scheduler = make_scheduler(max_running=rows, draft_tokens=4)
    samples = [new_sample([5, 6, 7, 8], k, max_new_tokens=4, ignore_eos=True) for k in range(rows)]
    assert counts(run(scheduler, samples)) == (0, 0)
    assert counts(run(scheduler, copies(samples[:4])))[0] >= 4 * 3  # 2 tokens, then 1


def test_guesses_that_are_wrong_are_no_longer_run(
    make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text that is followed is always wrong: the engine runs a few drafts, and then none."""

    def follow(self: Drafts, history: History) -> None:
        history.followed, history.position, history.matched = [1] * 9, 0, 3

    monkeypatch.setattr(Drafts, "_find", follow)
    samples = [new_sample([9] * 20, k, max_new_tokens=100, ignore_eos=True) for k in range(3)]
    run(make_scheduler(draft_tokens=4), samples)
    drafted, accepted = counts(samples)
    assert accepted <= 3
    assert drafted < 20


def sample_of(prompt: list[int], tokens: list[int] | None = None) -> SampleInProgress:
    sample = new_sample(prompt)
    return dataclasses.replace(sample, tokens=np.array(tokens or [], np.int32))


def test_guesses_come_from_the_prompt_the_answer_itself_and_other_answers() -> None:
    drafts = Drafts()
    first = drafts.begin(sample_of([1, 2, 3, 4, 5, 6]))
    assert drafts.guess(first, 4) == []
    drafts.extend(first, [9, 1, 2, 3])
    assert drafts.guess(first, 2) == [4, 5]  # the prompt
    drafts.extend(first, [7, 8, 7, 8, 7, 8])
    assert drafts.guess(first, 5) == [7, 8, 7, 8, 7]  # its own repetition, which may go on
    second = drafts.begin(sample_of([1, 2, 3, 4, 5, 6]))
    assert drafts.guess(second, 3) == [9, 1, 2]  # the other answer, from its beginning
    third = drafts.begin(sample_of([1, 2, 3, 4, 5, 6, 9, 1, 2], [3]))  # a later turn, or a continued sample
    assert third.texts is second.texts
    assert drafts.guess(third, 2) == [7, 8]
    other = drafts.begin(sample_of([2, 2, 3]))
    drafts.extend(other, [9, 1, 2, 3])
    assert drafts.guess(other, 2) == []


def test_reliability_is_that_of_guesses_after_matches_of_the_same_length() -> None:
    drafts = Drafts()
    begun = drafts.reliability(3)
    history = drafts.begin(sample_of([1, 2, 3, 4] * 40))
    drafts.extend(history, [1, 2, 3, 4] * 40)
    assert drafts.reliability(16) > 0.95
    for token in range(100, 160):
        wrong = drafts.begin(sample_of([1, 2, 3, 4] * 40))
        assert drafts.guess(wrong, 1) != [token]
        drafts.extend(wrong, [token])
    assert drafts.reliability(3) < begun / 5
    assert drafts.reliability(20) == drafts.reliability(16) > 0.95


def test_old_prompts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts_module, "MAX_TOKENS", 100)
    drafts = Drafts()
    for number in range(50):
        drafts.begin(sample_of([number + 1] * 30))
    assert len(drafts._texts) == 4
    assert min(texts.prompt[0] for texts in drafts._texts.values()) == 47


def test_recurrent_states_are_refused(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen3_next")
    with pytest.raises(ValueError, match="draft_tokens: recurrent states"):
        loading.load(EngineSetup(str(folder), draft_tokens=4))
