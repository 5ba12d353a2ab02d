import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from rlrun.plugins.generation import Generation
from rlrun.plugins.types import Drop, Group, VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.rollouts.asynchronous import AsynchronousSource, DrainBeforeUpdate
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.rollout_source import Batch
from rlrun.runner.rollouts.synchronous import SynchronousSource
from rlrun.specs.sections.rollout import RolloutSpec
from tests.resolved_specs import resolved_rollout
from tests.runner.loop_fakes import Engines, Instant, Prompts, drop_even, policy
from tests.runner.typing_engines import TypingEngines

SPEC = resolved_rollout(batch_size=4, samples_per_prompt=2, max_response_tokens=8, mode="async")


def source(engines: Engines, spec: RolloutSpec = SPEC, filters=()) -> AsynchronousSource:
    return AsynchronousSource(spec, policy(engines), Instant(4), Filters(list(filters)))  # type: ignore[arg-type]


def indices(groups: list[Group]) -> list[int]:
    return [group.prompt.index for group in groups]


async def idle(turns: int = 200) -> None:
    """Runs the event loop for a while, as when the driver waits for the trainer."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def steps(rollouts: AsynchronousSource, engines: Engines, count: int) -> list[Batch]:
    batches = []
    for version in range(count):
        engines.version = version
        batches.append(await rollouts.next(version))
        await idle()
    return batches


@pytest.mark.parametrize("max_staleness", [1, 2, 3])
async def test_no_sample_is_staler_than_allowed_and_none_is_used_twice(max_staleness: int) -> None:
    engines = Engines()
    engines.order = lambda index: 7 * index % 31  # later prompts overtake earlier ones
    spec = SPEC.model_copy(update={"max_staleness": max_staleness})
    rollouts = source(engines, spec)
    used: Counter[int] = Counter()
    for version, batch in enumerate(await steps(rollouts, engines, 12)):
        assert len(batch.groups) == 4
        assert indices(batch.groups) == sorted(indices(batch.groups))
        used.update(indices(batch.groups))
        for group in batch.groups:
            assert all(version - one.oldest_version <= max_staleness for one in group.samples)
        assert batch.measure()["rollout/staleness/max"] <= max_staleness
    assert set(used.values()) == {1}
    await rollouts.close()


async def test_engines_work_while_the_trainer_does() -> None:
    engines = Engines()
    rollouts = source(engines)
    batch = await rollouts.next(0)
    await idle()
    assert len(engines.requests) >= 8  # the batch, and the next one
    trained = set(indices(batch.groups))
    assert len({int(request.tokens[0]) for request in engines.requests} - trained) == 4
    assert batch.overlapped
    await rollouts.close()


async def test_a_group_that_took_too_long_is_dropped_and_counted() -> None:
    engines = Engines()
    engines.order = lambda index: 700 if index == 5 else 0
    rollouts = source(engines)
    batches = await steps(rollouts, engines, 8)
    dropped = [batch.measure().get("rollout/dropped/staleness/too_old", 0) for batch in batches]
    assert sum(dropped) == 1
    assert max(batch.measure()["rollout/staleness/max"] for batch in batches) == 1
    assert 5 not in [index for batch in batches for index in indices(batch.groups)]
    await rollouts.close()


async def test_dropped_groups_are_replaced_while_the_trainer_works() -> None:
    engines = Engines()
    rollouts = source(engines, filters=[("odd", drop_even)])
    batches = await steps(rollouts, engines, 4)
    assert [index for batch in batches for index in indices(batch.groups)] == list(range(1, 33, 2))
    assert sum(batch.measure()["rollout/dropped/odd/even"] for batch in batches) >= 12
    await rollouts.close()


async def test_the_oldest_are_trained_first_whichever_was_ready_first() -> None:
    engines = Engines()
    engines.order = lambda index: 100 if index == 1 else 0
    rollouts = source(engines, SPEC.model_copy(update={"batch_size": 1, "max_staleness": 2}))
    taken = []
    for version in range(4):
        engines.version = version
        taken += indices((await rollouts.next(version)).groups)
        await idle(200 if version else 0)
    assert taken == [0, 2, 1, 3]
    await rollouts.close()


async def test_a_group_is_as_old_as_its_oldest_sample() -> None:
    class FirstSampleIsOld(Engines):
        async def generate(self, request: GenerateRequest) -> list[Generation]:
            first, *others = await super().generate(request)
            if request.tokens[0] == 0:
                first = replace(first, versions=(VersionSpan(0, 0, 1),))
            return [first, *others]

    engines = FirstSampleIsOld()
    engines.version = 2
    rollouts = source(engines)
    batch = await rollouts.next(2)
    assert indices(batch.groups) == [1, 2, 3, 4]
    assert batch.measure()["rollout/dropped/staleness/too_old"] == 1
    resumed = source(again := Engines())
    await resumed.restore(rollouts.state())
    again.version = 3
    await resumed.next(3)
    assert min(int(request.tokens[0]) for request in again.requests) == 5, "what was dropped is over"
    await rollouts.close()
    await resumed.close()


async def test_a_prompt_whose_group_was_dropped_is_not_asked_again_after_a_resume() -> None:
    rollouts = source(Engines(), filters=[("odd", drop_even)])
    batch = await rollouts.next(0)
    assert indices(batch.groups) == [1, 3, 5, 7]
    resumed = source(again := Engines(), filters=[("odd", drop_even)])
    await resumed.restore(rollouts.state())
    await resumed.next(0)
    assert min(int(request.tokens[0]) for request in again.requests) == 8
    await rollouts.close()
    await resumed.close()


async def test_starvation_ends_the_job() -> None:
    spec = SPEC.model_copy(update={"batch_size": 1, "max_attempts": 4})
    starved = source(Engines(), spec, [("nonzero_std", lambda group: Drop("all_0"))])
    with pytest.raises(JobError, match=r"tried 0 were kept, 1 are needed. Dropped: 4 by nonzero_std"):
        await starved.next(0)
    await starved.close()


async def test_a_filter_may_give_back_what_it_dropped_when_the_step_starves() -> None:
    class DropsAll:
        keep_when_short = True

        def __call__(self, group: Group) -> Drop:
            return Drop("dull")

    rollouts = source(Engines(), SPEC.model_copy(update={"max_attempts": 2}), [("forgiving", DropsAll())])
    batch = await rollouts.next(0)
    assert indices(batch.groups) == [0, 1, 2, 3]
    await rollouts.close()


async def test_unfinished_requests_are_sent_again_after_a_resume() -> None:
    engines = Engines()
    engines.order = lambda index: 5 * (index % 3)
    rollouts = source(engines)
    before = await steps(rollouts, engines, 3)
    state = rollouts.state()
    await rollouts.close()
    resumed = source(engines)
    await resumed.restore(state)
    after = await steps(resumed, engines, 3)
    used = [index for batch in (*before, *after) for index in indices(batch.groups)]
    assert len(used) == len(set(used)) == 24
    assert set(range(16)) <= set(used)
    await resumed.close()


async def test_a_synchronous_job_goes_on_where_an_asynchronous_one_stopped() -> None:
    engines = Engines()
    engines.order = lambda index: 9 - index if index < 9 else 0
    rollouts = source(engines)
    [first] = await steps(rollouts, engines, 1)
    state = rollouts.state()
    await rollouts.close()
    spec = SPEC.model_copy(update={"mode": "sync"})
    resumed = SynchronousSource(spec, policy(engines), Prompts().ahead(4), Filters([]))
    await resumed.restore(state)
    second = await resumed.next(1)
    assert not set(indices(first.groups)) & set(indices(second.groups))
    await resumed.close()


async def test_close_leaves_no_task() -> None:
    engines = Engines()
    engines.never = {5, 6}
    rollouts = source(engines)
    await rollouts.next(0)
    await rollouts.close()
    assert engines.aborted == 1
    assert len(asyncio.all_tasks()) == 1


async def test_an_error_in_a_task_reaches_the_loop() -> None:
    class FailingFilter:
        keep_when_short = False

        def __call__(self, group: Group) -> Drop | None:
            raise ZeroDivisionError("in a filter")

    rollouts = source(Engines(), filters=[("faulty", FailingFilter())])
    with pytest.raises(ZeroDivisionError, match="in a filter"):
        await rollouts.next(0)
    await rollouts.close()


async def test_an_error_while_the_trainer_works_is_told_by_the_next_step() -> None:
    class FailingFilter:
        keep_when_short = False

        def __call__(self, group: Group) -> Drop | None:
            if group.prompt.index == 9:
                raise ZeroDivisionError("in a filter")
            return None

    engines = Engines()
    engines.order = lambda index: 100 if index == 9 else 0
    rollouts = source(
        engines, SPEC.model_copy(update={"max_staleness": 3}), filters=[("faulty", FailingFilter())]
    )
    await rollouts.next(0)
    await idle()  # eight more are ready, and the trainer could go on without the one that failed
    with pytest.raises(ZeroDivisionError, match="in a filter"):
        await rollouts.next(1)
    await rollouts.close()


@pytest.mark.parametrize("between", [False, True])
async def test_weights_change_during_generation_or_between(between: bool) -> None:
    class Updated(TypingEngines):
        async def update_weights(self, update: int) -> int:  # type: ignore[override]
            self.version = update
            return update

    engines = Updated(lambda index, number: 5 + 7 * (index % 4))
    rollouts = source(engines, SPEC.model_copy(update={"max_response_tokens": 99}))  # type: ignore[arg-type]
    updated = DrainBeforeUpdate(engines, rollouts) if between else engines  # type: ignore[arg-type]
    samples = []
    for version in range(8):
        batch = await rollouts.next(version)
        samples += [one for group in batch.groups for one in group.samples]
        await idle(4)
        assert await updated.update_weights(version + 1) == version + 1  # type: ignore[arg-type]
    mixed = [one for one in samples if len(one.versions) > 1]
    assert bool(mixed) != between
    assert len({one.id for one in samples}) == len(samples) == 64
    await rollouts.close()
