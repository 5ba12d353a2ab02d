import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rlrun.plugins.generation import Generation
from rlrun.plugins.types import Drop, Group, Sample, Status
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.pending_requests import PendingRequests
from rlrun.runner.rollouts import deadlines, synchronous
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.synchronous import SynchronousSource
from rlrun.specs.sections.rollout import RolloutSpec
from tests.resolved_specs import resolved_rollout
from tests.runner.loop_fakes import Engines, Grader, Prompts, drop_even, policy
from tests.runner.typing_engines import TypingEngines

SPEC = resolved_rollout(batch_size=4, samples_per_prompt=3, max_response_tokens=8)


def source(engines: Engines, spec: RolloutSpec = SPEC, filters=(), grader=None, deterministic=False):
    prompts = Prompts().ahead(spec.oversample or spec.batch_size)
    return SynchronousSource(
        spec, policy(engines, grader, deterministic=deterministic), prompts, Filters(list(filters))
    )


def indices(groups: list[Group]) -> list[int]:
    return [group.prompt.index for group in groups]


async def test_groups_come_ordered_by_prompt_whatever_finishes_first() -> None:
    engines = Engines()
    engines.order = lambda index: 20 - 5 * index
    batch = await source(engines).next(0)
    assert indices(batch.groups) == [0, 1, 2, 3]
    assert [len(group.samples) for group in batch.groups] == [3] * 4
    assert batch.generated_tokens == 12


async def test_a_samples_seed_depends_on_the_prompt_and_its_number_alone() -> None:
    first, second = Engines(), Engines()
    second.order = lambda index: 9 - index
    await source(first).next(0)
    await source(second, SPEC.model_copy(update={"batch_size": 2, "oversample": 4})).next(0)
    seeds = {int(request.tokens[0]): request.seeds for request in first.requests}
    assert seeds == {int(request.tokens[0]): request.seeds for request in second.requests}
    assert len({seed for row in seeds.values() for seed in row}) == 12


async def test_surplus_groups_are_aborted_once_enough_are_kept() -> None:
    engines = Engines()
    engines.never = {1, 5}
    batch = await source(engines, SPEC.model_copy(update={"oversample": 6})).next(0)
    assert indices(batch.groups) == [0, 2, 3, 4]
    assert engines.aborted == 1
    assert len(asyncio.all_tasks()) <= 2  # this test and the read-ahead


async def test_nothing_is_aborted_when_nothing_runs() -> None:
    engines = Engines()
    await source(engines).next(0)
    assert engines.aborted == 0


@pytest.mark.parametrize("deterministic", [False, True])
async def test_dropped_groups_are_replaced_and_counted(deterministic: bool) -> None:
    engines = Engines()
    batch = await source(engines, filters=[("odd", drop_even)], deterministic=deterministic).next(0)
    assert indices(batch.groups) == [1, 3, 5, 7]
    assert batch.measure()["rollout/dropped/odd/even"] == 4
    assert len(engines.requests) == 8
    assert sorted(indices(batch.removed)) == [0, 2, 4, 6]
    removed = [sample for group in batch.removed for sample in group.samples]
    assert all(sample.verdicts == ["odd/even"] for sample in removed)


@pytest.mark.parametrize("deterministic", [False, True])
async def test_dropped_groups_are_not_replaced_if_the_spec_says_so(deterministic: bool) -> None:
    engines, spec = Engines(), SPEC.model_copy(update={"replace_dropped": False})
    unreplaced = source(engines, spec, [("odd", drop_even)], deterministic=deterministic)
    for kept in ([1, 3], [5, 7]):
        batch = await unreplaced.next(0)
        assert indices(batch.groups) == kept
        assert batch.measure()["rollout/dropped/odd/even"] == 2
    assert len(engines.requests) == 8
    assert engines.aborted == 0


@pytest.mark.parametrize("deterministic", [False, True])
async def test_more_prompts_come_only_while_no_group_is_kept(deterministic: bool) -> None:
    def late(group: Group) -> Drop | None:
        return None if group.prompt.index in (5, 9) else Drop("dull")

    spec = SPEC.model_copy(update={"replace_dropped": False, "max_attempts": 2})
    unreplaced = source(Engines(), spec, [("late", late)], deterministic=deterministic)
    assert indices((await unreplaced.next(0)).groups) == [5]
    assert indices((await unreplaced.next(0)).groups) == [9]
    with pytest.raises(JobError, match="of 8 groups tried 0 were kept, 1 are needed"):
        await unreplaced.next(0)


async def test_metrics_tell_of_dropped_groups_too() -> None:
    batch = await source(Engines(), filters=[("odd", drop_even)]).next(3)
    assert batch.measure()["rollout/reward/mean"] == batch.measure()["rollout/rewards/good"]
    assert batch.measure()["rollout/prefix_cache_hit_rate"] == pytest.approx(2 / 3)
    assert batch.generated_tokens == 24
    assert batch.measure()["rollout/staleness/max"] == 4  # the fake engine serves version -1


@pytest.mark.parametrize("deterministic", [False, True])
async def test_starvation_says_what_was_tried_and_why_it_was_dropped(deterministic: bool) -> None:
    def nothing(group: Group) -> Drop:
        return Drop("all_0" if group.prompt.index % 4 else "all_1")

    spec, filters = SPEC.model_copy(update={"max_attempts": 2}), [("nonzero_std", nothing)]
    starved = source(Engines(), spec, filters, deterministic=deterministic)
    with pytest.raises(
        JobError, match=r"of 8 groups tried 0 were kept, 4 .* 6 by nonzero_std \(all_0\), 2 by"
    ):
        await starved.next(0)


@pytest.mark.parametrize("deterministic", [False, True])
async def test_a_filter_may_give_back_what_it_dropped_when_the_step_starves(deterministic: bool) -> None:
    class SpareDrops:
        keep_when_short = True

        def __call__(self, group: Group) -> Drop | None:
            return None if group.prompt.index == 5 else Drop("dull")

    spec = SPEC.model_copy(update={"max_attempts": 2})
    batch = await source(Engines(), spec, [("forgiving", SpareDrops())], deterministic=deterministic).next(0)
    assert indices(batch.groups) == [0, 1, 2, 5]
    assert not {0, 1, 2} & set(indices(batch.removed))


@pytest.mark.parametrize("samples", [1, 3])
async def test_a_group_past_its_time_is_dropped_counted_and_replaced(samples: int) -> None:
    engines = Engines()
    engines.never = {2}
    spec = SPEC.model_copy(update={"request_timeout": 0.3, "samples_per_prompt": samples})
    batch = await source(engines, spec).next(0)
    assert indices(batch.groups) == [0, 1, 3, 4]
    assert batch.measure()["rollout/dropped/generation/timeout"] == 1


async def test_a_sample_past_its_time_leaves_its_group_and_is_counted() -> None:
    engines = TypingEngines(lambda index, number: 10**9 if (index, number) == (2, 1) else 3)
    spec = SPEC.model_copy(update={"request_timeout": 0.3, "max_response_tokens": 10**9})
    batch = await source(engines, spec).next(0)  # type: ignore[arg-type]
    assert indices(batch.groups) == [0, 1, 2, 3]
    assert [one.id for one in batch.groups[2].samples] == ["2-0", "2-2"]
    assert batch.measure()["rollout/dropped_samples/generation/timeout"] == 1


async def test_an_engine_that_does_not_hear_that_a_sample_is_late_costs_the_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deadlines, "GRACE_SECONDS", 0.02)
    engines = TypingEngines(lambda index, number: 10**9 if (index, number) == (2, 1) else 3)
    engines.deaf = True
    spec = SPEC.model_copy(update={"request_timeout": 0.3, "max_response_tokens": 10**9})
    batch = await source(engines, spec).next(0)  # type: ignore[arg-type]
    assert indices(batch.groups) == [0, 1, 3, 4]
    assert batch.measure()["rollout/dropped/generation/timeout"] == 1


async def test_a_sample_past_its_time_has_no_reward_that_would_be_told_of() -> None:
    engines = TypingEngines(lambda index, number: 10**9 if (index, number) == (2, 1) else 3)
    spec = SPEC.model_copy(update={"request_timeout": 0.3, "max_response_tokens": 10**9})
    metrics = (await source(engines, spec).next(0)).measure()  # type: ignore[arg-type]
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    assert metrics["rollout/response_len/max"] == 3


async def test_an_engine_that_hangs_while_surplus_is_aborted_does_not_end_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class HangingAbort(Engines):
        async def abort_all(self) -> None:
            await asyncio.Event().wait()

    for module in (deadlines, synchronous):
        monkeypatch.setattr(module, "GRACE_SECONDS", 0.02)
    engines = HangingAbort()
    engines.never = {1, 5}
    batch = await source(engines, SPEC.model_copy(update={"oversample": 6})).next(0)
    assert indices(batch.groups) == [0, 2, 3, 4]
    assert len(asyncio.all_tasks()) <= 2  # this test and the read-ahead


async def test_no_more_samples_are_asked_for_than_allowed() -> None:
    spec = SPEC.model_copy(update={"max_concurrency": 7, "batch_size": 9})
    engines = TypingEngines(lambda index, number: 3)
    batch = await source(engines, spec).next(0)  # type: ignore[arg-type]
    assert indices(batch.groups) == list(range(9))
    assert engines.most == 6  # two groups of three


async def test_a_wave_past_its_time_ends_a_deterministic_job() -> None:
    engines = Engines()
    engines.never = {2}
    spec = SPEC.model_copy(update={"request_timeout": 0.3})
    with pytest.raises(JobError, match=r"4 prompts were not answered within 0\.3 s"):
        await source(engines, spec, deterministic=True).next(0)


async def test_a_wave_has_the_time_of_every_round_that_engines_need() -> None:
    engines = Engines()
    engines.never = {2}
    spec = SPEC.model_copy(update={"request_timeout": 0.1})
    asked = replace(policy(engines, deterministic=True), pending=PendingRequests(5))
    rollouts = SynchronousSource(spec, asked, Prompts().ahead(4), Filters([]))
    with pytest.raises(
        JobError, match=r"4 prompts were not answered within 0\.3 s"
    ):  # 12 samples, 5 at a time
        await rollouts.next(0)


async def test_an_engine_error_fails_the_group() -> None:
    engines = Engines()
    engines.broken = {0}
    batch = await source(engines).next(0)
    assert indices(batch.groups) == [1, 2, 3, 4]
    assert batch.measure()["rollout/failed"] == 3


async def test_failed_samples_are_counted_and_never_trained() -> None:
    grader = Grader()
    grader.fails = {1}
    batch = await source(Engines(), grader=grader).next(0)
    assert 1 not in indices(batch.groups)
    assert batch.measure()["rollout/failed"] == 3
    assert np.isfinite(batch.measure()["rollout/reward/mean"])


@pytest.mark.parametrize(("truncated", "trained"), [("train", 1.0), ("mask", 0.0)])
async def test_truncated_samples_are_trained_or_masked(truncated: str, trained: float) -> None:
    engines = Engines(finish="length")
    batch = await source(engines, SPEC.model_copy(update={"truncated": truncated})).next(0)
    assert {float(s.loss_mask.sum()) for group in batch.groups for s in group.samples} == {trained}
    assert batch.measure()["rollout/truncated_ratio"] == 1.0


@pytest.mark.parametrize(
    ("truncated", "left"),
    [
        ("train", {"0-0": 1, "0-1": 1, "0-2": 1}),
        ("mask", {"0-0": 1, "0-1": 0, "0-2": 1}),
        ("drop", {"0-0": 1, "0-2": 1}),
    ],
)
async def test_what_is_done_with_a_truncated_sample_leaves_its_siblings(
    truncated: str, left: dict[str, float]
) -> None:
    class SecondIsCut(Engines):
        async def generate(self, request: GenerateRequest) -> list[Generation]:
            first, second, third = await super().generate(request)
            return [first, replace(second, finish="length"), third]

    spec = SPEC.model_copy(update={"truncated": truncated})
    batch = await source(SecondIsCut(), spec).next(0)
    assert {one.id: float(one.loss_mask.sum()) for one in batch.groups[0].samples} == left
    dropped = batch.measure().get("rollout/dropped_samples/generation/truncated", 0)
    assert dropped == (3 - len(left)) * len(batch.groups)


async def test_a_failed_sample_leaves_its_siblings() -> None:
    class SecondFails(Grader):
        async def score(self, samples: Sequence[Sample]) -> None:
            await super().score(samples)
            for one in samples:
                if one.id.endswith("-1"):
                    one.status = Status.FAILED

    batch = await source(Engines(), grader=SecondFails()).next(0)
    assert [one.id for one in batch.groups[0].samples] == ["0-0", "0-2"]
    assert batch.measure()["rollout/failed"] == 4


async def test_a_group_that_failed_is_never_given_back() -> None:
    grader = Grader()
    grader.fails = set(range(1, 8))
    spec = SPEC.model_copy(update={"max_attempts": 2})
    with pytest.raises(JobError, match=r"of 8 groups tried 1 were kept, 4 .* 7 by generation \(failed\)"):
        await source(Engines(), spec, grader=grader).next(0)


async def test_truncated_samples_can_be_dropped() -> None:
    spec = SPEC.model_copy(update={"truncated": "drop", "max_attempts": 1})
    with pytest.raises(JobError, match=r"4 by truncated \(all\)"):
        await source(Engines(finish="length"), spec).next(0)


async def test_deterministic_mode_asks_in_waves() -> None:
    engines = Engines()
    spec = SPEC.model_copy(update={"oversample": 6})
    rollouts = source(engines, spec, [("odd", drop_even)], deterministic=True)
    batch = await rollouts.next(0)
    assert engines.batches == [6, 6]
    assert indices(batch.groups) == [1, 3, 5, 7]
    assert batch.generated_tokens == 12 * 3
    assert batch.measure()["rollout/prefix_cache_hit_rate"] == pytest.approx(2 / 3)


async def test_the_place_in_the_data_survives_reading_ahead() -> None:
    rollouts = source(Engines())
    await rollouts.next(0)
    state = rollouts.state()
    await rollouts.close()
    again = source(Engines())
    await again.restore(state)
    assert indices((await again.next(0)).groups) == [4, 5, 6, 7]


async def test_a_cancelled_step_leaves_nothing_running() -> None:
    engines = Engines()
    engines.never = {0}
    rollouts = source(engines)
    step = asyncio.create_task(rollouts.next(0))
    for _ in range(50):
        await asyncio.sleep(0)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert engines.aborted == 1
    await rollouts.close()
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_resumed_source_knows_what_its_filters_knew() -> None:
    class EverySecond:
        """Drops every second group that it sees."""

        def __init__(self) -> None:
            self.seen = 0

        def __call__(self, group: Group) -> Drop | None:
            self.seen += 1
            return Drop("even") if self.seen % 2 == 0 else None

        def state(self) -> int:
            return self.seen

        def restore(self, state: int) -> None:
            self.seen = state

    def batches(source: SynchronousSource, count: int):
        return [source.next(0) for _ in range(count)]

    spec = SPEC.model_copy(update={"batch_size": 3, "oversample": 5})
    whole = source(Engines(), spec, [("second", EverySecond())], deterministic=True)
    expected = [indices((await one).groups) for one in batches(whole, 4)]
    first = source(Engines(), spec, [("second", EverySecond())], deterministic=True)
    found = [indices((await one).groups) for one in batches(first, 1)]
    resumed = source(Engines(), spec, [("second", EverySecond())], deterministic=True)
    await resumed.restore(json.loads(json.dumps(first.state())))
    found += [indices((await one).groups) for one in batches(resumed, 3)]
    assert found == expected
    assert resumed.state() == whole.state()
