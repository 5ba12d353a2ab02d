"""Executions in lockstep: their requests go to the engines as one batch, once every execution waits for one.

    execution 0 ─request─▶ │                          │ ─answer─▶ …
    execution 1 ─request─▶ │ one batch, in the order  │ ─answer─▶ a tool runs … ─request─▶ │
    execution 2 ─request─▶ │ of prompts and samples   │ ─answer─▶ finished                 │ the next batch

Which requests run together in an engine then depends only on the requests, never on their timing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from rlrun.runner.contracts.carriers import GenerateRequest, Generation

SendBatch = Callable[[Sequence[GenerateRequest]], Awaitable[list[list[Generation]]]]
"""Sends several requests to the engines and returns their generations in the same order."""


class Barrier:
    """Sends a batch of requests whenever all slots wait; all slots are added before the first request."""

    def __init__(self, send_batch: SendBatch) -> None:
        self._send_batch = send_batch
        self._slots: set[BarrierSlot] = set()
        self._batch_task: asyncio.Task[None] | None = None
        self.error: Exception | None = None
        """The error that the engines raised; every slot with a request in that batch raised it too."""

    def add_slot(self, position: tuple[int, ...]) -> "BarrierSlot":
        """Returns a new slot; batches are in the order of positions, and wait for it until it leaves."""
        slot = BarrierSlot(self, position)
        self._slots.add(slot)
        return slot

    def remove_slot(self, slot: "BarrierSlot") -> None:
        """Removes the slot of an execution that sends no more requests."""
        self._slots.discard(slot)
        self.send_if_complete()

    def send_if_complete(self) -> None:
        """Sends the next batch if every slot has a request."""
        if self._batch_task is None and self._slots and all(slot.waiting for slot in self._slots):
            self._batch_task = asyncio.get_running_loop().create_task(self._run_batch())

    async def _run_batch(self) -> None:
        slots = sorted(self._slots, key=lambda slot: slot.position)
        waiting = [request for slot in slots for request in slot.waiting]
        for slot in slots:
            slot.waiting = []
        try:
            answers = await self._send_batch([request for request, _ in waiting])
        except Exception as error:  # raised again in every slot of the batch
            self.error = error
            for _, future in waiting:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), answer in zip(waiting, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        self._batch_task = None
        self.send_if_complete()

    async def close(self) -> None:
        """Cancels the batch that is running."""
        if self._batch_task is not None:
            self._batch_task.cancel()
            await asyncio.wait([self._batch_task])


class BarrierSlot:
    """One execution's slot in a barrier."""

    def __init__(self, barrier: Barrier, position: tuple[int, ...]) -> None:
        self.position = position
        self.waiting: list[tuple[GenerateRequest, asyncio.Future[list[Generation]]]] = []
        """Requests for the next batch."""
        self._barrier = barrier

    def leave(self) -> None:
        """Ends this slot, so that batches no longer wait for it."""
        self._barrier.remove_slot(self)

    async def send(self, request: GenerateRequest) -> list[Generation]:
        """Returns the generations of a request, which is sent together with those of the other slots."""
        if self._barrier.error is not None:
            raise self._barrier.error
        future: asyncio.Future[list[Generation]] = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        self._barrier.send_if_complete()
        return await future
