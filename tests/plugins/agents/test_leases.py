"""Each task is leased to one worker at a time, and has one result."""

import asyncio
from collections.abc import Iterator

import pytest

from rlrun.plugins.agents.workers.leases import AnotherResult, LeaseGone, Leases
from rlrun.plugins.failures import Failure, InfrastructureError
from rlrun.runner.host.background import cancel_all


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def leases() -> Iterator[Leases[str, str]]:
    yield Leases(60.0, Clock())


async def test_tasks_are_leased_in_order_and_results_find_their_executions(leases: Leases[str, str]) -> None:
    executions = [asyncio.create_task(leases.result_of(task)) for task in "abc"]
    first, second = [await leases.lease(worker, 5.0) for worker in ("w1", "w2")]
    assert first is not None and second is not None
    assert (first.task, second.task, len(leases.waiting)) == ("a", "b", 1)
    assert leases.give(second.key, b"two", "result of b")
    assert leases.give(first.key, b"one", "result of a")
    assert [await execution for execution in executions[:2]] == ["result of a", "result of b"]
    await cancel_all(executions[2:])
    assert not leases.waiting and not leases.leased and leases.num_done == 2


async def test_a_result_counts_once_however_often_it_is_sent(leases: Leases[str, str]) -> None:
    execution = asyncio.create_task(leases.result_of("a"))
    lease = await leases.lease("w", 5.0)
    assert lease is not None
    assert leases.give(lease.key, b"body", "result")
    assert not leases.give(lease.key, b"body", "result")
    with pytest.raises(AnotherResult):
        leases.give(lease.key, b"other", "another")
    with pytest.raises(AnotherResult):
        leases.fail(lease.key, b"other", RuntimeError())
    assert await execution == "result" and leases.num_done == 1


async def test_a_worker_without_a_sign_of_life_is_lost(leases: Leases[str, str]) -> None:
    leases.seconds = 1e-3
    execution = asyncio.create_task(leases.result_of("a"))
    lease = await leases.lease("w", 5.0)
    assert lease is not None and isinstance(leases.clock, Clock)
    leases.clock.now = 0.5e-3
    leases.renew(lease.key)
    leases.clock.now = 2e-3
    with pytest.raises(InfrastructureError, match="worker 'w' gave no sign of life") as raised:
        await execution
    assert raised.value.failure is Failure.PREEMPTED
    with pytest.raises(LeaseGone):
        leases.give(lease.key, b"late", "late")
    with pytest.raises(LeaseGone):
        leases.renew(lease.key)
    assert (leases.num_done, leases.num_lost) == (0, 1)


async def test_what_the_job_does_not_need_any_more_is_withdrawn(leases: Leases[str, str]) -> None:
    waiting, leased = (asyncio.create_task(leases.result_of(task)) for task in "ab")
    lease = await leases.lease("w", 5.0)
    assert lease is not None
    await cancel_all([waiting, leased])
    assert not leases.waiting
    with pytest.raises(LeaseGone):
        leases.give(lease.key, b"", "late")
    assert await leases.lease("w", 0.0) is None


async def test_a_lease_that_does_not_reach_its_worker_is_the_next_one_s(leases: Leases[str, str]) -> None:
    executions = [asyncio.create_task(leases.result_of(task)) for task in "ab"]
    lease = await leases.lease("gone", 5.0)
    assert lease is not None
    leases.take_back(lease)
    again = await leases.lease("w", 5.0)
    assert again is not None and again.task == "a"
    leases.fail(again.key, b"", ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await executions[0]
    await cancel_all(executions[1:])
