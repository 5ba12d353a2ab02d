"""Prompts one at a time, finished in any order; and where to go on so that none is lost or used twice.

read ──▶ taken ──▶ finished        place: before the first batch that has an unfinished prompt,
                                   and which prompts beyond it are finished
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.plugins.types import Prompt
from rlrun.runner.ahead import ReadAhead

_FINISHED = "finished"


@dataclass(slots=True)
class _Read:
    """A batch of prompts that was read."""

    place: dict[str, Any]
    """Where reading stood before it."""
    unfinished: set[int]
    finished: set[int]


class PromptFeed:
    """Hands out prompts; whoever takes one says when it is done with."""

    def __init__(self, prompts: ReadAhead[Prompt]) -> None:
        self._prompts = prompts
        self._queue: deque[Prompt] = deque()
        self._reads: deque[_Read] = deque()
        self._skipped: set[int] = set()
        self._reading = asyncio.Lock()

    async def take(self) -> Prompt:
        """The next prompt that is not finished."""
        async with self._reading:
            while True:
                if not self._queue:
                    await self._read()
                prompt = self._queue.popleft()
                if prompt.index not in self._skipped:
                    return prompt
                self.finish(prompt.index)

    def finish(self, index: int) -> None:
        """This prompt was trained on, or dropped; it may be told twice."""
        for read in self._reads:
            if index in read.unfinished:
                read.unfinished.remove(index)
                read.finished.add(index)
        while self._reads and not self._reads[0].unfinished:
            self._reads.popleft()

    def state(self) -> dict[str, Any]:
        """The place to go on from."""
        place = self._reads[0].place if self._reads else self._prompts.state()
        finished = sorted(index for read in self._reads for index in read.finished)
        return {**place, _FINISHED: finished}

    async def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place."""
        place, self._skipped = split_state(state)
        self._queue.clear()
        self._reads.clear()
        await self._prompts.restore(place)

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._prompts.close()

    async def _read(self) -> None:
        place = self._prompts.state()
        batch = await self._prompts.next()
        self._reads.append(_Read(place, {prompt.index for prompt in batch}, set()))
        self._queue.extend(batch)


def split_state(state: Mapping[str, Any]) -> tuple[dict[str, Any], set[int]]:
    """The place in the data, and the prompts beyond it that are finished already."""
    place = dict(state)
    return place, set(place.pop(_FINISHED, ()))
