"""Continuous batching: sharing, joining, leaving, room, retraction, aborting, versions."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.plugins.generation import Generation, Sampling
from rlrun.plugins.types import VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest, RequestOptions
from rlrun.runner.engines.native.engine import sampler as sampler_module
from rlrun.runner.engines.native.engine import scheduler as scheduler_module
from rlrun.runner.engines.native.engine.requests import SampleInProgress, SamplingParams, group_samples
from rlrun.runner.engines.native.engine.scheduler import Scheduler
from rlrun.runner.engines.native.model import native_ops
from rlrun.runner.engines.native.model.forward import PromptResults
from rlrun.runner.rollouts.resumable_request import ResumableRequest
from tests.runner.engines.engine_cases import MakeScheduler, new_sample, random_prompts, run
from tests.tiny_models import make_tiny_model

PROMPTS = random_prompts(6, shortest=3)


def alone(make_scheduler: MakeScheduler, samples: list[SampleInProgress]) -> list[SampleInProgress]:
    """The same samples, each run alone."""
    scheduler = make_scheduler()
    return [
        run(scheduler, [new_sample(j.prompt.tolist(), j.seed, **dataclasses.asdict(j.params))])[0]
        for j in samples
    ]


def assert_same(ours: list[SampleInProgress], theirs: list[SampleInProgress], exact: bool = False) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        assert a.finish == b.finish
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=0 if exact else 1e-4)


def free_blocks(scheduler: Scheduler) -> int:
    """Returns the number of free blocks; all blocks are free when no sample runs."""
    return scheduler._pool.free


def mixed_samples() -> list[SampleInProgress]:
    """Three samples for each prompt, of different budgets."""
    return [
        new_sample(prompt, seed=10 * i + k, name=f"{i}-{k}", max_new_tokens=7 + 13 * k)
        for i, prompt in enumerate(PROMPTS)
        for k in range(3)
    ]


def test_a_sample_does_not_depend_on_others_in_its_batch(
    make_scheduler: MakeScheduler, operations: str
) -> None:
    together = run(make_scheduler(max_running=5), mixed_samples())
    assert_same(together, alone(make_scheduler, mixed_samples()))


def test_samples_of_a_prompt_share_its_prefill_and_its_blocks(make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler()
    total = free_blocks(scheduler)
    samples = [new_sample(list(range(2, 66)), seed, max_new_tokens=4, ignore_eos=True) for seed in range(6)]
    scheduler.add(group_samples(samples))
    scheduler.step()
    assert total - free_blocks(scheduler) == 64 // 16 + 6
    while scheduler.busy:
        scheduler.step()
    assert free_blocks(scheduler) == total
    assert [j.cached_tokens for j in samples] == [0, 64, 64, 64, 64, 64]


def test_samples_join_while_others_run(make_scheduler: MakeScheduler, operations: str) -> None:
    scheduler = make_scheduler()
    samples = mixed_samples()
    for start in range(0, len(samples), 3):
        scheduler.add(group_samples(samples[start : start + 3]))
        for _ in range(4):
            scheduler.step()
    while scheduler.busy:
        scheduler.step()
    assert_same(samples, alone(make_scheduler, mixed_samples()))


def test_the_same_batch_gives_the_same_bits(make_scheduler: MakeScheduler, operations: str) -> None:
    first = make_scheduler(max_running=6)
    once = run(first, mixed_samples())
    assert_same(run(first, mixed_samples()), once, exact=True)
    assert_same(run(make_scheduler(max_running=6), mixed_samples()), once, exact=True)


def test_more_samples_of_a_prompt_than_rows(make_scheduler: MakeScheduler) -> None:
    samples = [new_sample(PROMPTS[0], seed, max_new_tokens=5 + seed) for seed in range(7)]
    run(make_scheduler(max_running=2), samples)
    assert_same(samples, alone(make_scheduler, samples))


@pytest.mark.parametrize("max_cache_tokens", [112, 150, 230])
def test_a_small_cache_retracts_and_resumes(
    make_scheduler: MakeScheduler, operations: str, max_cache_tokens: int
) -> None:
    scheduler = make_scheduler(max_cache_tokens=max_cache_tokens)
    total = free_blocks(scheduler)
    samples = run(scheduler, mixed_samples())
    assert free_blocks(scheduler) == total
    assert max_cache_tokens == 230 or sum(sample.retractions for sample in samples) > 0
    assert_same(samples, alone(make_scheduler, mixed_samples()))


def test_retracting_everything_changes_nothing(make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler(max_running=6)
    samples = mixed_samples()
    scheduler.add(group_samples(samples))
    total = scheduler._pool.total
    while scheduler.busy:
        for _ in range(9):
            scheduler.step()
        scheduler.retract_all()
        assert scheduler.running == 0
        assert free_blocks(scheduler) == total
    assert_same(samples, alone(make_scheduler, mixed_samples()))


@pytest.mark.parametrize(("tokens", "prompts"), [(1, 128), (100, 128), (8192, 1), (8192, 2)])
def test_how_prompts_share_a_pass_changes_nothing(
    make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch, tokens: int, prompts: int
) -> None:
    monkeypatch.setattr(scheduler_module, "PREFILL_TOKENS", tokens)
    monkeypatch.setattr(scheduler_module, "PREFILL_PROMPTS", prompts)
    scheduler = make_scheduler(max_running=32)
    passes: list[list[int]] = []
    prefill = scheduler.model.prefill

    def noting(packed: torch.Tensor, lengths: Sequence[int], *others: Any) -> PromptResults:
        passes.append(list(lengths))
        return prefill(packed, lengths, *others)

    monkeypatch.setattr(scheduler.model, "prefill", noting)
    samples = run(scheduler, mixed_samples())
    assert [length for each in passes for length in each] == [len(prompt) for prompt in PROMPTS]
    for each in passes:
        assert len(each) == 1 or (sum(each) <= tokens and len(each) <= prompts)
    assert_same(samples, alone(make_scheduler, mixed_samples()))


@pytest.mark.parametrize("bound", [{"top_k": 1}, {"top_p": 1e-9}], ids=["top-k", "top-p"])
def test_what_is_drawn_is_bounded(
    make_scheduler: MakeScheduler, operations: str, bound: dict[str, float]
) -> None:
    scheduler = make_scheduler()
    [likeliest] = run(scheduler, [new_sample(PROMPTS[0], 1, temperature=0.0)])
    [bounded] = run(scheduler, [new_sample(PROMPTS[0], 1, **bound)])
    [free] = run(scheduler, [new_sample(PROMPTS[0], 1)])
    assert bounded.tokens.tolist() == likeliest.tokens.tolist() != free.tokens.tolist()
    together = run(scheduler, [new_sample(PROMPTS[0], 1, **bound), new_sample(PROMPTS[0], 1)])
    assert [one.tokens.tolist() for one in together] == [bounded.tokens.tolist(), free.tokens.tolist()]


def test_abort_returns_what_was_made(make_scheduler: MakeScheduler) -> None:
    done: list[str] = []
    scheduler = make_scheduler(max_running=4)
    total = free_blocks(scheduler)
    samples = [
        new_sample(PROMPTS[i // 3], i, name=str(i), max_new_tokens=30, ignore_eos=True) for i in range(9)
    ]
    for j in samples:
        j.on_done = lambda finished: done.append(finished.id)
    scheduler.add(group_samples(samples))
    for _ in range(5):
        scheduler.step()
    assert scheduler.abort(lambda j: j.id in ("1", "5", "8"), "by the test") == 3
    assert done == ["1", "5", "8"]
    assert [len(samples[i].tokens) for i in (1, 5, 8)] == [6, 0, 0]
    assert samples[1].finish == {"type": "abort", "message": "by the test"}
    assert samples[5].spans == []
    while scheduler.busy:
        scheduler.step()
    assert free_blocks(scheduler) == total
    assert all(len(samples[i].tokens) == 30 for i in (0, 2, 3, 4, 6, 7))


def test_new_weights_begin_a_span(make_scheduler: MakeScheduler, tmp_path: Path) -> None:
    scheduler = make_scheduler()
    other = make_scheduler(make_tiny_model(tmp_path, seed=7, max_position_embeddings=8192))
    samples = [new_sample(PROMPTS[0], 1, max_new_tokens=20), new_sample(PROMPTS[1], 2, max_new_tokens=3)]
    unchanged = alone(make_scheduler, samples)[0]
    scheduler.add(group_samples(samples))
    for _ in range(7):
        scheduler.step()
    scheduler.set_weights(other.model.weights, 4)
    while scheduler.busy:
        scheduler.step()
    assert samples[0].spans == [(0, 0, 8), (4, 8, 20)]
    assert samples[1].spans == [(0, 0, 3)]
    np.testing.assert_array_equal(samples[0].tokens[:8], unchanged.tokens[:8])
    assert not np.allclose(samples[0].log_probs[8:], unchanged.log_probs[8:])


def test_a_sample_that_starts_after_new_weights_has_nothing_of_the_old(
    make_scheduler: MakeScheduler, tmp_path: Path
) -> None:
    """Its prompt was computed, and its first token's logits, when the first sample of its group began."""
    folder = make_tiny_model(tmp_path, seed=7, max_position_embeddings=8192)
    scheduler = make_scheduler(max_running=2)
    total = free_blocks(scheduler)
    samples = [
        new_sample(PROMPTS[0], seed, str(seed), max_new_tokens=12, ignore_eos=True) for seed in range(4)
    ]
    scheduler.add(group_samples(samples))
    for _ in range(5):
        scheduler.step()
    scheduler.set_weights(make_scheduler(folder).model.weights, 4)
    while scheduler.busy:
        scheduler.step()
    late = [new_sample(PROMPTS[0], seed, str(seed), max_new_tokens=12, ignore_eos=True) for seed in (2, 3)]
    assert_same(samples[2:], run(make_scheduler(folder, max_running=2), late))
    assert [one.spans for one in samples] == [[(0, 0, 6), (4, 6, 12)]] * 2 + [[(4, 0, 12)]] * 2
    assert [one.cached_tokens for one in samples] == [0, len(PROMPTS[0]), 0, len(PROMPTS[0])]
    assert free_blocks(scheduler) == total


@pytest.mark.parametrize("retract", [False, True], ids=["in place", "retract"])
def test_a_request_after_new_weights_shares_no_prompt_with_one_that_runs_from_before(
    make_scheduler: MakeScheduler, tmp_path: Path, retract: bool
) -> None:
    other = make_scheduler(make_tiny_model(tmp_path, seed=7, max_position_embeddings=8192))
    scheduler = make_scheduler()
    early = new_sample(PROMPTS[0], 1, max_new_tokens=20, ignore_eos=True)
    scheduler.add(group_samples([early]))
    for _ in range(5):
        scheduler.step()
    if retract:
        scheduler.retract_all()
    scheduler.set_weights(other.model.weights, 4)
    late = [new_sample(PROMPTS[0], seed, str(seed), max_new_tokens=8, ignore_eos=True) for seed in (2, 3)]
    run(scheduler, late)
    again = [new_sample(PROMPTS[0], seed, str(seed), max_new_tokens=8, ignore_eos=True) for seed in (2, 3)]
    assert_same(late, run(other, again))
    assert [one.spans for one in (early, *late)] == [[(0, 0, 6), (4, 6, 20)], [(4, 0, 8)], [(4, 0, 8)]]


def test_stop_tokens_end_a_sample_and_stay_in_it(make_scheduler: MakeScheduler) -> None:
    free = run(make_scheduler(), [new_sample(PROMPTS[0], 3, max_new_tokens=40, ignore_eos=True)])[0]
    stop = int(free.tokens[12])
    first = free.tokens.tolist().index(stop)
    samples = [
        new_sample(PROMPTS[0], 3, max_new_tokens=40, stop_token_ids=(stop,)),
        new_sample(PROMPTS[0], 3, max_new_tokens=40, stop_token_ids=(stop,), ignore_eos=True),
        new_sample(PROMPTS[0], 3, max_new_tokens=first + 1, stop_token_ids=(stop,)),
    ]
    run(make_scheduler(), samples)
    assert samples[0].finish == {"type": "stop", "matched": stop}
    assert samples[0].tokens.tolist() == free.tokens.tolist()[: first + 1]
    assert samples[1].finish == {"type": "length", "length": 40}
    assert samples[2].finish == {"type": "stop", "matched": stop}


def test_min_new_tokens_holds_stop_tokens_back(make_scheduler: MakeScheduler, operations: str) -> None:
    everything = tuple(range(2, 320))
    samples = [
        new_sample(PROMPTS[1], 5, max_new_tokens=9, min_new_tokens=4, stop_token_ids=everything),
        new_sample(
            PROMPTS[1], 5, max_new_tokens=9, min_new_tokens=4, stop_token_ids=everything, temperature=0.0
        ),
    ]
    run(make_scheduler(), samples)
    for finished in samples:
        assert len(finished.tokens) == 5
        assert finished.tokens[:4].tolist() == [0, 0, 0, 0]
        assert finished.finish is not None
        assert finished.finish["type"] == "stop"


def test_stop_strings_end_a_sample(make_scheduler: MakeScheduler) -> None:
    scheduler = make_scheduler()
    free = run(scheduler, [new_sample(PROMPTS[2], 4, max_new_tokens=60, ignore_eos=True)])[0]
    strings = scheduler._stops.strings
    strings.index(dataclasses.replace(free.params, stop=("x",)))  # loads the tokenizer
    assert strings._tokenizer is not None
    texts = [strings._tokenizer.decode([token], skip_special_tokens=False) for token in free.tokens.tolist()]
    end = next(i for i in range(10, 60) if all(len(text) == 1 for text in texts[i - 2 : i + 1]))
    stop = "".join(texts[end - 2 : end + 1])
    samples = [
        new_sample(PROMPTS[2], 4, max_new_tokens=60, stop=(stop, "never seen"), ignore_eos=True),
        new_sample(PROMPTS[2], 4, max_new_tokens=60, stop=("never seen",), ignore_eos=True),
    ]
    run(scheduler, samples)
    assert samples[0].finish == {"type": "stop", "matched": stop}
    assert samples[0].tokens.tolist() == free.tokens.tolist()[: end + 1]
    assert len(samples[1].tokens) == 60


def test_a_stop_string_ends_a_sample_at_the_same_token_in_one_go_and_continued(
    make_scheduler: MakeScheduler,
) -> None:
    """Before the minimum length too, wherever the sample is cut."""
    scheduler = make_scheduler()
    settings = {"max_new_tokens": 60, "min_new_tokens": 40, "ignore_eos": True}
    free = run(scheduler, [new_sample(PROMPTS[2], 4, **settings)])[0].tokens
    strings = scheduler._stops.strings
    strings.index(SamplingParams(stop=("x",)))  # loads the tokenizer
    assert strings._tokenizer is not None
    texts = strings._tokenizer.decode_batch([[token] for token in free.tolist()], skip_special_tokens=False)
    end = next(i for i in range(10, 60) if all(len(text) == 1 for text in texts[i - 2 : i + 1]))
    stop = "".join(texts[end - 2 : end + 1])
    [whole] = run(scheduler, [new_sample(PROMPTS[2], 4, **settings, stop=(stop,))])
    assert whole.finish == {"type": "stop", "matched": stop}
    assert whole.tokens.tolist() == free[: end + 1].tolist()

    def decode(batch: Sequence[np.ndarray]) -> list[str]:
        assert strings._tokenizer is not None
        return strings._tokenizer.decode_batch(
            [tokens.tolist() for tokens in batch], skip_special_tokens=False
        )

    prompt, sampling = np.array(PROMPTS[2], np.int32), Sampling(60, min_new_tokens=40, stop=(stop,))
    for cut in (4, end - 2, end - 1, end):
        request = GenerateRequest("r", prompt, (4,), sampling, prompt_index=0)
        begun = Generation(free[:cut], np.zeros(cut, np.float32), "abort", (VersionSpan(0, 0, cut),))
        resumable = ResumableRequest(request, [begun])
        [(_, part)] = resumable.next_requests()
        rest = {
            "max_new_tokens": part.sampling.max_new_tokens,
            "min_new_tokens": part.sampling.min_new_tokens,
        }
        [made] = run(scheduler, [new_sample(part.tokens.tolist(), 4, **rest, stop=(stop,), ignore_eos=True)])
        spans, count = (VersionSpan(0, 0, len(made.tokens)),), len(made.tokens)
        resumable.append(0, Generation(made.tokens, np.zeros(count, np.float32), "stop", spans), decode)
        assert resumable.generations[0].tokens.tolist() == whole.tokens.tolist(), cut


def test_with_onednn_batches_of_a_small_model_are_padded_to_few_sizes(
    make_scheduler: MakeScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_ops, "packs", lambda dtype: False)
    model = make_scheduler().model
    sizes = [model.padded(count) for count in range(1, 257)]
    assert len(set(sizes)) <= 30
    assert all(count <= size <= count * 1.25 for count, size in enumerate(sizes, 1))
    monkeypatch.setattr(model, "_num_weights", 600_000_000)
    assert [model.padded(count) for count in range(1, 257)] == list(range(1, 257))


def test_masks_are_recorded_of_masked_samples_alone_and_over_a_retraction(
    make_scheduler: MakeScheduler, operations: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "CPU_LOGITS_BYTES", 3 * 320 * 4)  # three rows of logits at a time
    scheduler = make_scheduler()
    limits = {"top_p": 0.9, "top_k": 40, "ignore_eos": True}
    samples = [new_sample(prompt, k, f"{k}", **limits) for k, prompt in enumerate(PROMPTS[:4])]
    samples += [new_sample(PROMPTS[4], 4, "free"), new_sample(PROMPTS[5], 5, "unmasked", **limits)]
    for masked in samples[:4]:
        masked.options = RequestOptions(return_sampling_mask=True)
    scheduler.add(group_samples(samples))
    for _ in range(5):
        scheduler.step()
    scheduler.retract_all()
    while scheduler.busy:
        scheduler.step()
    for done in samples[:4]:
        assert len(done.masks) == len(done.mask_log_probs) == len(done.tokens) == 20
        for token, mask, log_prob, whole in zip(
            done.tokens, done.masks, done.mask_log_probs, done.log_probs, strict=True
        ):
            assert token in mask and 1 <= len(mask) <= 40
            assert whole <= log_prob + 1e-6 <= 2e-6
    assert not any(done.masks or done.mask_log_probs for done in samples[4:])
    again = [new_sample(prompt, k, f"{k}", **limits) for k, prompt in enumerate(PROMPTS[:4])]
    assert_same(run(make_scheduler(), again), samples[:4])
