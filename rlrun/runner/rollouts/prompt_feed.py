"""Prompts one at a time, finished in any order; and where to go on so that none is lost or used twice.

read ──▶ taken ──▶ finished        place: before the first batch that has an unfinished prompt,
                                   and which prompts beyond it are finished
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.plugins.types import Prompt
from rlrun.runner.prompts.prefetcher import Prefetcher

FILTERS, BUFFER = "filters", "buffer"
"""Keys of a source's state beside the place in the data: what filters remember, what waits to be used."""
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

    def __init__(self, prompts: Prefetcher[Prompt]) -> None:
        self._prompts = prompts
        self._queue: deque[Prompt] = deque()
        self._reads: deque[_Read] = deque()
        self._skipped: set[int] = set()
        """Finished before they were read."""
        self._held: set[int] = set()
        self._last = -1
        """The last prompt that was read."""
        self._reading = asyncio.Lock()

    async def take(self) -> Prompt:
        """The next prompt that is neither finished nor held."""
        async with self._reading:
            while True:
                if not self._queue:
                    await self._read()
                prompt = self._queue.popleft()
                if prompt.index in self._skipped:
                    self._skipped.remove(prompt.index)
                    self.finish(prompt.index)
                elif prompt.index not in self._held:
                    return prompt

    def hold(self, indices: Iterable[int]) -> None:
        """Do not hand these out, and do not count them as finished: their answers are known already."""
        self._held = set(indices)

    def finish(self, index: int) -> None:
        """This prompt was trained on, or dropped; it may be told twice, and before it is read."""
        for read in self._reads:
            if index in read.unfinished:
                read.unfinished.remove(index)
                read.finished.add(index)
                break
        else:
            if index > self._last:
                self._skipped.add(index)
        while self._reads and not self._reads[0].unfinished:
            self._reads.popleft()

    def state(self) -> dict[str, Any]:
        """The place to go on from."""
        place = self._reads[0].place if self._reads else self._prompts.state()
        finished = self._skipped.union(*(read.finished for read in self._reads))
        return {**place, _FINISHED: sorted(finished)}

    async def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a saved place."""
        place, self._skipped = split_state(state)
        self._queue.clear()
        self._reads.clear()
        self._last = -1
        await self._prompts.restore(place)

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._prompts.close()

    async def _read(self) -> None:
        place = self._prompts.state()
        batch = await self._prompts.next()
        self._reads.append(_Read(place, {prompt.index for prompt in batch}, set()))
        self._queue.extend(batch)
        self._last = batch[-1].index


def split_state(state: Mapping[str, Any]) -> tuple[dict[str, Any], set[int]]:
    """The place in the data, and the prompts beyond it that are finished already."""
    place = {key: value for key, value in state.items() if key not in (_FINISHED, FILTERS, BUFFER)}
    return place, set(state.get(_FINISHED, ()))


def joined_state(
    place: Mapping[str, Any], finished: Iterable[int], filters: Mapping[str, Any]
) -> dict[str, Any]:
    """A state that `split_state` takes apart, with what filters remember."""
    return {
        **place,
        **({_FINISHED: beyond} if (beyond := sorted(finished)) else {}),
        **({FILTERS: dict(filters)} if filters else {}),
    }
