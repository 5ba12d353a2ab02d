"""Steps 1 to 4 of the loop while the trainer works: asynchronous rollout with bounded staleness.

    feed ──▶ engines, rewards, filters ──▶ ready ──▶ the P oldest, when the trainer wants a batch
      ▲                                      │
      └── while in flight + ready < room ◀───┘     room: max_staleness · P, and P more while the trainer waits

Once v's batch is taken at most `max_staleness` · P groups are begun or ready, and the oldest go first: one
begun under weights v is trained on by version v + `max_staleness`. A group that takes even longer is dropped
and counted.
"""

import asyncio
import sys
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from rlrun.plugins.types import Group, Prompt
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.host.background import cancel_all
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.rollouts.deadlines import abort_all
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.group_producer import GroupProducer
from rlrun.runner.rollouts.grouping import prompt_index
from rlrun.runner.rollouts.prompt_feed import FILTERS, PromptFeed
from rlrun.runner.rollouts.synchronous import Batch
from rlrun.runner.rollouts.tally import Tally
from rlrun.specs.sections.rollout import RolloutSpec


class AsynchronousSource:
    """Batches of groups that engines go on making between one `next` and the other."""

    def __init__(
        self,
        spec: RolloutSpec,
        policy: RolloutContext,
        prompts: Prefetcher[Prompt],
        filters: Filters,
    ) -> None:
        """As for RolloutSource."""
        self._spec = spec
        self._engines = policy.engines
        self._filters = filters
        self._answers = GroupProducer(spec, policy, filters)
        self._feed = PromptFeed(prompts)
        self._ready: list[Group] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self._room = 0
        self._held = False
        self._tally = Tally()
        self._changed = asyncio.Event()
        self._never = asyncio.Event()

    async def next(self, version: int) -> Batch:
        """The P oldest groups, none staler than `max_staleness`. JobError when filters leave too few."""
        wanted = self._spec.batch_size
        self._room = (self._spec.max_staleness + 1) * wanted
        while True:
            self._raise_failures()
            self._drop_stale(version)
            if len(self._ready) >= wanted:
                break
            if self._tally.submitted - self._in_flight >= self._spec.max_attempts * wanted:
                self._ready = self._tally.make_do(self._ready, wanted)
                break
            self._fill()
            await self._changed.wait()
            self._changed.clear()
        return self._take(version)

    def state(self) -> dict[str, Any]:
        """The place in the data: prompts that are in flight or ready will be asked again. And what filters
        remember.
        """
        return {**self._feed.state(), FILTERS: self._filters.state()}

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now, to be read later."""
        return partial(dict, self.state())

    async def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved place."""
        self._filters.restore(state.get(FILTERS, {}))
        await self._feed.restore(state)

    async def drain(self) -> None:
        """Begin nothing more; return when nothing is under way."""
        self._held = True
        while running := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(running)

    def go_on(self) -> None:
        """Begin again what there is room for."""
        self._held = False
        self._fill()

    async def close(self) -> None:
        """End what is being generated, and stop reading ahead."""
        self._room = 0
        if self._tasks:
            await abort_all(self._engines)
        await cancel_all(self._tasks)
        _failures(self._tasks)  # whoever closes knows of one
        await self._feed.close()

    def _take(self, version: int) -> Batch:
        """The oldest groups leave; others may begin in their place while the trainer works."""
        wanted = self._spec.batch_size
        self._ready.sort(key=lambda group: (_oldest(group), prompt_index(group)))
        groups, self._ready = self._ready[:wanted], self._ready[wanted:]
        for group in groups:
            self._feed.finish(group.prompt.index)
        tally, self._tally = self._tally, self._tally.split({prompt_index(group) for group in self._ready})
        self._room = self._spec.max_staleness * wanted
        self._fill()
        measure = partial(tally.metrics, version)
        return Batch(sorted(groups, key=prompt_index), tally.generated_tokens, measure, overlapped=True)

    def _fill(self) -> None:
        """Begin as many groups as there is room for."""
        while not self._held and self._in_flight + len(self._ready) < self._room:
            self._in_flight += 1
            self._tally.submitted += 1
            task = asyncio.create_task(self._run())
            self._tasks.add(task)

    async def _run(self) -> None:
        """One prompt, from feed to ready; a dropped one makes room for the next."""
        try:
            prompt = await self._feed.take()
            group = await self._answers.one(prompt, lambda: self._tally, self._never)
            if group is None:
                self._feed.finish(prompt.index)
            else:
                self._ready.append(group)
        finally:
            self._in_flight -= 1
            self._changed.set()
        if group is None:
            self._fill()

    def _drop_stale(self, version: int) -> None:
        """Drop what is too old to be trained on; the metrics of staleness are of what is trained."""
        oldest = version - self._spec.max_staleness
        stale = {prompt_index(group) for group in self._ready if _oldest(group) < oldest}
        self._ready = [group for group in self._ready if prompt_index(group) not in stale]
        self._tally.drop_waiting(stale, "staleness", "too_old")
        for index in stale:
            self._feed.finish(index)

    def _raise_failures(self) -> None:
        """Pass on what a task raised, and forget those that are done."""
        done = {task for task in self._tasks if task.done()}
        self._tasks -= done
        if failures := _failures(done):
            raise failures[0]


def _failures(tasks: Iterable[asyncio.Task[None]]) -> list[BaseException]:
    """What tasks that have ended raised."""
    return [error for task in tasks if not task.cancelled() and (error := task.exception()) is not None]


def _oldest(group: Group) -> int:
    """The oldest weights that made one of its tokens; without any it is as new as can be."""
    return min((sample.oldest_version for sample in group.samples if sample.versions), default=sys.maxsize)
