"""Later turns continue the cache of samples that have ended: log-probs, memory, weights, experts."""

from pathlib import Path

import numpy as np
import pytest

from rlrun.runner.contracts.carriers import RequestOptions
from rlrun.runner.engines.native.engine.engine import Engine
from rlrun.runner.engines.native.engine.loading import load
from rlrun.runner.engines.native.engine.requests import SampleInProgress, group_samples
from rlrun.runner.engines.native.engine.scheduler import Scheduler
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.model import flash_ops
from tests.runner.engines.engine_cases import new_sample, random_prompts, run
from tests.runner.engines.varlen_reference import varlen_attention
from tests.tiny_models import make_tiny_model

PROMPTS = random_prompts(3, shortest=20)
EXACT = 1e-5


FAMILIES = ["qwen3", "deepseek_v3", "glm_moe_dsa", "qwen3_5_text", "qwen3_next", "gemma3_text"]
USUAL = ("qwen3", "deepseek_v3", "qwen3_next")
"""In `make test`: attention, latent attention, and attention beside Gated DeltaNet, with experts."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in FAMILIES],
)
def family(request: pytest.FixtureRequest) -> str:
    """Attention, latent attention, Gated DeltaNet without and with experts, and windows by transformers."""
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def folder(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("prefixes"), family, scale=0.05, pad_token_id=None)


def scheduler_of(folder: Path, kept: int = 8, **settings: int) -> Scheduler:
    limits = {"max_running": 8} | settings
    return load(EngineSetup(str(folder), dtype="float32", kept_samples=kept, **limits)).scheduler  # type: ignore[arg-type]


def turn(prompts: list[list[int]], *, experts: bool = False, greedy: bool = False) -> list[SampleInProgress]:
    """One sample of 21 tokens for each prompt."""
    samples = [
        new_sample(
            prompt, 7 * i, f"{i}", max_new_tokens=21, ignore_eos=True, temperature=0.0 if greedy else 1.0
        )
        for i, prompt in enumerate(prompts)
    ]
    for sample in samples:
        sample.options = RequestOptions(return_routed_experts=experts)
    return samples


def next_prompts(samples: list[SampleInProgress], added: int = 5) -> list[list[int]]:
    """The conversations so far, with a few tokens as from a tool."""
    return [[*sample.prompt.tolist(), *sample.tokens.tolist(), *range(9, 9 + added)] for sample in samples]


def assert_same(ours: list[SampleInProgress], theirs: list[SampleInProgress]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.log_probs, b.log_probs, atol=EXACT, rtol=0)


@pytest.mark.parametrize("greedy", [False, True], ids=["drawn", "greedy"])
@pytest.mark.parametrize("added", [1, 5, 70])
def test_a_later_turn_is_as_after_a_fresh_prefill(folder: Path, added: int, *, greedy: bool) -> None:
    scheduler, fresh = scheduler_of(folder), scheduler_of(folder, 0)
    prompts = PROMPTS
    for number in range(3):
        ours, theirs = (run(each, turn(prompts, greedy=greedy)) for each in (scheduler, fresh))
        assert_same(ours, theirs)
        cached = [len(prompt) - added - 1 if number else 0 for prompt in prompts]
        assert [sample.cached_tokens for sample in ours] == cached
        assert [sample.cached_tokens for sample in theirs] == [0] * len(prompts)
        prompts = next_prompts(ours, added)


def test_turns_of_several_conversations_share_a_pass_with_new_prompts(folder: Path) -> None:
    scheduler, fresh = scheduler_of(folder), scheduler_of(folder, 0)
    first = run(scheduler, turn(PROMPTS))
    prompts = [next_prompts(first)[0], random_prompts(1, seed=5, shortest=30)[0], next_prompts(first)[2]]
    prompts.append(prompts[0])  # a group of two beside
    prompts.sort()
    ours, theirs = (run(each, turn(prompts)) for each in (scheduler, fresh))
    assert_same(ours, theirs)
    assert sum(0 < sample.cached_tokens < len(sample.prompt) for sample in ours) == 2


def test_only_whole_samples_are_continued_with_a_recurrent_state(folder: Path, family: str) -> None:
    scheduler, fresh = scheduler_of(folder), scheduler_of(folder, 0)
    first = run(scheduler, turn(PROMPTS))
    edited = [[*prompt[:-15], 3, 4, 5] for prompt in next_prompts(first)]
    ours, theirs = (run(each, turn(edited)) for each in (scheduler, fresh))
    assert_same(ours, theirs)
    expected = [0] * 3 if family.startswith("qwen3_") else [len(prompt) - 3 for prompt in edited]
    assert [sample.cached_tokens for sample in ours] == expected


def test_kept_samples_make_room_for_running_ones(folder: Path) -> None:
    scheduler, fresh = scheduler_of(folder, max_cache_tokens=224), scheduler_of(folder, 0)
    prompts = PROMPTS
    for _ in range(3):
        ours, theirs = (run(each, turn(prompts)) for each in (scheduler, fresh))
        assert_same(ours, theirs)
        prompts = [prompt[-60:] for prompt in next_prompts(ours, 2)]
    scheduler.drop_kept_samples()
    assert scheduler._pool.free == scheduler.blocks


def test_no_more_samples_are_kept_than_allowed(folder: Path) -> None:
    scheduler = scheduler_of(folder, 2)
    first = run(scheduler, turn(PROMPTS))
    assert len(scheduler._prefixes) == 2
    later = run(scheduler, turn(next_prompts(first)))
    assert sum(sample.cached_tokens > 0 for sample in later) == 2
    assert len(scheduler._prefixes) == 2


def test_new_weights_drop_what_the_old_ones_computed(folder: Path, family: str, tmp_path: Path) -> None:
    other = load(EngineSetup(str(make_tiny_model(tmp_path, family, scale=0.05, seed=7)), dtype="float32"))
    scheduler = scheduler_of(folder)
    first = run(scheduler, turn(PROMPTS[:2]))
    running = turn(PROMPTS[2:])
    scheduler.add(group_samples(running))
    for _ in range(4):
        scheduler.step()
    scheduler.set_weights(other.scheduler.model.weights, 4)
    while scheduler.busy:
        scheduler.step()
    assert not len(scheduler._prefixes)  # that sample began before the update
    later = next_prompts([*first, *running])
    ours, theirs = (run(each, turn(later)) for each in (scheduler, other.scheduler))
    assert_same(ours, theirs)
    assert [sample.cached_tokens for sample in ours] == [0] * 3


def test_a_later_turn_reports_the_experts_of_all_its_tokens(folder: Path, family: str) -> None:
    if family in ("qwen3", "qwen3_5_text", "gemma3_text"):
        pytest.skip("the model has no experts")
    scheduler, fresh = scheduler_of(folder), scheduler_of(folder, 0)
    silent = run(scheduler, turn(PROMPTS[:1]))
    told = run(scheduler, turn(PROMPTS[1:], experts=True))
    prompts = next_prompts([*silent, *told])
    ours, theirs = (run(each, turn(prompts, experts=True)) for each in (scheduler, fresh))
    assert_same(ours, theirs)
    assert [sample.cached_tokens > 0 for sample in ours] == [False, True, True]
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(np.concatenate(a.experts), np.concatenate(b.experts))


def test_a_flush_and_sleep_drop_kept_samples(folder: Path) -> None:
    engine = Engine(load(EngineSetup(str(folder), dtype="float32", max_running=8, kept_samples=4)))
    scheduler = engine._scheduler
    engine.start()
    try:
        for drop in (engine.flush_cache, lambda: engine.release(["kv_cache"])):
            engine._thread.call(lambda: run(scheduler, turn(PROMPTS))).result()
            assert len(scheduler._prefixes) == 3
            assert drop().result() in (True, None)
            assert not len(scheduler._prefixes)
        engine.restore(["kv_cache"]).result()
        first = engine._thread.call(lambda: run(scheduler, turn(PROMPTS))).result()
        later = engine._thread.call(lambda: run(scheduler, turn(next_prompts(first)))).result()
    finally:
        engine.stop()
    assert_same(later, run(scheduler_of(folder, 0), turn(next_prompts(first))))
    assert all(sample.cached_tokens for sample in later)


def test_pages_are_continued_as_blocks_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, with torch's kernel replaced by plain torch that makes the same demands."""
    monkeypatch.setattr(flash_ops, "takes", lambda *_: True)
    monkeypatch.setattr(flash_ops, "varlen_attn", varlen_attention)
    model = make_tiny_model(tmp_path, "qwen3", scale=0.05)
    paged = scheduler_of(model)
    monkeypatch.setattr(flash_ops, "takes", lambda *_: False)
    fresh = scheduler_of(model, 0)
    prompts = [
        *random_prompts(1, shortest=300, longest=330),
        *random_prompts(1, seed=3, shortest=260, longest=290),
    ]
    for number in range(2):
        ours, theirs = (run(each, turn(prompts)) for each in (paged, fresh))
        assert_same(ours, theirs)
        cached = [len(prompt) - 6 if number else 0 for prompt in prompts]
        assert [sample.cached_tokens for sample in ours] == cached
        prompts = next_prompts(ours)
