"""Hands out prompts that may be finished in any order, and knows where to resume.

The saved position is before the first read batch that has an unfinished prompt, with the prompts after it
that are finished already. So no prompt is lost or used twice.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.plugins.types import Prompt
from rlrun.runner.prompts.prefetcher import Prefetcher

FILTERS, BUFFER = "filters", "buffer"
"""Keys of a source's state beside the position in the data: the filters' states, and the buffer."""
_FINISHED = "finished"


@dataclass(slots=True)
class _ReadBatch:
    """A batch of prompts that was read."""

    position: dict[str, Any]
    """The position in the data before the batch was read."""
    unfinished: set[int]
    finished: set[int]


class PromptFeed:
    """Hands out prompts, each of which its taker marks as finished once it is trained on or dropped."""

    def __init__(self, prompts: Prefetcher[Prompt]) -> None:
        self._prompts = prompts
        self._queue: deque[Prompt] = deque()
        self._batches: deque[_ReadBatch] = deque()
        self._skipped: set[int] = set()
        """Prompts that were finished before they were read."""
        self._held: set[int] = set()
        self._last_read = -1
        self._reading = asyncio.Lock()

    async def take(self) -> Prompt:
        """Returns the next prompt that is neither finished nor held."""
        async with self._reading:
            while True:
                if not self._queue:
                    await self._read()
                if (prompt := self._pop()) is not None:
                    return prompt

    async def take_batch(self) -> list[Prompt]:
        """Returns the prompts of the next batch that are neither finished nor held; at least one."""
        async with self._reading:
            while True:
                if not self._queue:
                    await self._read()
                popped = [self._pop() for _ in range(len(self._queue))]
                if prompts := [prompt for prompt in popped if prompt is not None]:
                    return prompts

    def hold(self, indices: Iterable[int]) -> None:
        """Neither hands these prompts out nor counts them as finished: their groups are in the buffer."""
        self._held = set(indices)

    def finish(self, index: int) -> None:
        """Marks a prompt as trained on or dropped; it may be called twice, or before the prompt is read."""
        for batch in self._batches:
            if index in batch.unfinished:
                batch.unfinished.remove(index)
                batch.finished.add(index)
                break
        else:
            if index > self._last_read:
                self._skipped.add(index)
        while self._batches and not self._batches[0].unfinished:
            self._batches.popleft()

    def state(self) -> dict[str, Any]:
        """Returns the position to resume at, as JSON values."""
        position = self._batches[0].position if self._batches else self._prompts.state()
        if self._prompts.steering is not None:
            position = self._prompts.steering.saved(position)
        finished = self._skipped.union(*(batch.finished for batch in self._batches))
        return {**position, _FINISHED: sorted(finished)}

    async def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved position."""
        position, self._skipped = split_state(state)
        self._queue.clear()
        self._batches.clear()
        self._last_read = -1
        await self._prompts.restore(position)

    async def close(self) -> None:
        """Stops reading ahead."""
        await self._prompts.close()

    def _pop(self) -> Prompt | None:
        """Takes a prompt out of the queue; None if it is finished or held."""
        prompt = self._queue.popleft()
        if prompt.index in self._skipped:
            self._skipped.remove(prompt.index)
            self.finish(prompt.index)
            return None
        return None if prompt.index in self._held else prompt

    async def _read(self) -> None:
        position = self._prompts.state()
        batch = await self._prompts.next()
        self._batches.append(_ReadBatch(position, {prompt.index for prompt in batch}, set()))
        self._queue.extend(batch)
        self._last_read = batch[-1].index


def split_state(state: Mapping[str, Any]) -> tuple[dict[str, Any], set[int]]:
    """Returns the position in the data, and the prompts after it that are finished already."""
    position = {key: value for key, value in state.items() if key not in (_FINISHED, FILTERS, BUFFER)}
    return position, set(state.get(_FINISHED, ()))
