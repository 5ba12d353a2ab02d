"""Which worker has which task: each task is leased to one worker at a time, and has one result.

put ──▶ waiting ──lease──▶ leased ──give──▶ done
           ▲                  │
    a new execution ◀── lost: no sign of life for `seconds`
"""

import asyncio
import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rlrun.plugins.failures import Failure, InfrastructureError

Task = TypeVar("Task")
Result = TypeVar("Result")
_REMEMBERED = 10_000
"""Ended leases whose results are recognised when they are sent again."""


class LeaseGone(Exception):
    """No worker holds this lease: it ran out, or its result is not wanted any more."""


class AnotherResult(Exception):
    """The lease has another result already."""


@dataclass(eq=False, slots=True)
class Lease(Generic[Task, Result]):
    """A task, and the worker that has it."""

    task: Task
    result: "asyncio.Future[Result]"
    key: str = ""
    """What the worker names the lease by; "" while the task waits for a worker."""
    worker: str = ""
    last_sign: float = 0.0
    """When the worker was last heard of, on the clock of the leases."""


@dataclass(slots=True)
class Leases(Generic[Task, Result]):
    """The tasks of all executions that run."""

    seconds: float
    """Seconds without a sign of life after which a worker is lost."""
    clock: Callable[[], float]
    waiting: list[Lease[Task, Result]] = field(default_factory=list)
    """Tasks without a worker, the oldest first."""
    leased: dict[str, Lease[Task, Result]] = field(default_factory=dict)
    num_done: int = 0
    num_lost: int = 0
    _ended: "OrderedDict[str, bytes]" = field(default_factory=OrderedDict)
    """The hashes of the results of ended leases."""
    _has_waiting: asyncio.Event = field(default_factory=asyncio.Event)

    async def result_of(self, task: Task) -> Result:
        """Offers a task to workers; returns its result.

        Raises what `fail` was given, and InfrastructureError if the worker is lost. If the call is cancelled,
        the task is withdrawn.
        """
        lease: Lease[Task, Result] = Lease(task, asyncio.get_running_loop().create_future())
        self.waiting.append(lease)
        self._has_waiting.set()
        try:
            while not lease.result.done():
                remaining = lease.last_sign + self.seconds - self.clock() if lease.key else self.seconds
                if remaining <= 0:
                    self.num_lost += 1
                    raise InfrastructureError(
                        f"worker {lease.worker!r} gave no sign of life for {self.seconds:g} s",
                        Failure.PREEMPTED,
                    )
                await asyncio.wait([lease.result], timeout=remaining)
            return lease.result.result()
        finally:
            if lease in self.waiting:
                self.waiting.remove(lease)
            self.leased.pop(lease.key, None)

    async def lease(self, worker: str, wait: float) -> Lease[Task, Result] | None:
        """Returns the oldest waiting task as a lease of this worker; None if there is none within `wait`
        seconds.
        """
        try:
            async with asyncio.timeout(wait):
                while not self.waiting:
                    self._has_waiting.clear()
                    await self._has_waiting.wait()
        except TimeoutError:
            return None
        lease = self.waiting.pop(0)
        lease.key, lease.worker, lease.last_sign = secrets.token_urlsafe(18), worker, self.clock()
        self.leased[lease.key] = lease
        return lease

    def take_back(self, lease: Lease[Task, Result]) -> None:
        """Ends a lease that did not reach its worker; the task waits for the next one."""
        if self.leased.pop(lease.key, None) is not None:
            lease.key = ""
            self.waiting.insert(0, lease)
            self._has_waiting.set()

    def renew(self, key: str) -> None:
        """Notes a sign of life. Raises LeaseGone."""
        self._get(key).last_sign = self.clock()

    def give(self, key: str, body: bytes, result: Result) -> bool:
        """Ends a lease with its result; `body` is the request that brought it.

        Returns False, and does nothing, for the same request again, whose first answer was lost. Raises
        AnotherResult for another one, and LeaseGone.
        """
        if not self._is_new(key, body):
            return False
        self._end(key, body).result.set_result(result)
        self.num_done += 1
        return True

    def fail(self, key: str, body: bytes, error: Exception) -> bool:
        """Ends a lease with the error of its execution; otherwise as `give`."""
        if not self._is_new(key, body):
            return False
        self._end(key, body).result.set_exception(error)
        return True

    def _get(self, key: str) -> Lease[Task, Result]:
        if key not in self.leased:
            raise LeaseGone
        return self.leased[key]

    def _is_new(self, key: str, body: bytes) -> bool:
        known = self._ended.get(key)
        if known is not None and known != _digest(body):
            raise AnotherResult
        return known is None

    def _end(self, key: str, body: bytes) -> Lease[Task, Result]:
        lease = self._get(key)
        del self.leased[key]
        self._ended[key] = _digest(body)
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        return lease


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()
