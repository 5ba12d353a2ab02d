"""Steps 1 to 4 of the loop while the trainer works: asynchronous rollout with bounded staleness.

    feed ──▶ engines, rewards, filters ──▶ ready ──▶ the P oldest, when the trainer asks for a batch
      ▲                                      │
      └─ while in flight + ready < limit ◀───┘   limit: a · P, and P more while the trainer waits

Once the batch of version v is taken, at most a · P groups are in flight or ready, and the oldest are used
first: a group that was begun then is trained on by version v + a. Engines have weights v, or with a
`weight_update_interval` of k up to k - 1 versions older ones, so that a is `max_staleness` - (k - 1). A group
that takes even longer is dropped and counted.
"""

import asyncio
import sys
from functools import partial

from rlrun.plugins.types import Group, Prompt
from rlrun.runner.contracts.interfaces import Engines, RolloutContext
from rlrun.runner.contracts.weight_updates import WeightUpdate
from rlrun.runner.host.background import cancel_all
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.rollouts.deadlines import abort_all_requests
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.grouping import prompt_index
from rlrun.runner.rollouts.rollout_source import Batch, RolloutSource
from rlrun.specs.sections.rollout import RolloutSpec


class AsynchronousSource(RolloutSource):
    """Generates groups continuously, also between two calls of `next`."""

    def __init__(
        self, spec: RolloutSpec, policy: RolloutContext, prompts: Prefetcher[Prompt], filters: Filters
    ) -> None:
        super().__init__(spec, policy, prompts, filters)
        self._batches_ahead = spec.max_staleness - (spec.weight_update_interval - 1)
        self._ready: list[Group] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_flight = 0
        self._limit = 0
        """The maximum number of groups in flight or ready."""
        self._paused = False
        self._group_done = asyncio.Event()
        self._failures: list[Exception] = []
        self._oldest_allowed = 0
        """The oldest version that a group's tokens may have."""

    async def next(self, version: int) -> Batch:
        """Returns the P oldest groups, none of them staler than `max_staleness`."""
        batch_size = self._spec.batch_size
        self._limit = (self._batches_ahead + 1) * batch_size
        self._oldest_allowed = version - self._spec.max_staleness
        self._drop_stale()
        while True:
            if self._failures:
                raise self._failures[0]
            if len(self._ready) >= batch_size:
                break
            if self._is_exhausted(self._in_flight):
                self._ready = self._tally.accept_partial_batch(self._ready, batch_size)
                break
            self._start_groups()
            await self._group_done.wait()
            self._group_done.clear()
        return self._take(version)

    async def drain(self) -> None:
        """Starts no further groups, and returns when none is in flight."""
        self._paused = True
        while unfinished := [task for task in self._tasks if not task.done()]:
            await asyncio.wait(unfinished)

    def resume(self) -> None:
        """Starts groups again after `drain`."""
        self._paused = False
        self._start_groups()

    async def close(self) -> None:
        """Aborts the groups in flight, and stops reading ahead."""
        self._limit = 0
        if self._tasks:
            await abort_all_requests(self._engines)
        await cancel_all(list(self._tasks))
        await super().close()

    def _take(self, version: int) -> Batch:
        """Takes the oldest groups out of the buffer, and starts others while the trainer works."""
        batch_size = self._spec.batch_size
        self._ready.sort(key=lambda group: (_oldest_version(group), prompt_index(group)))
        groups, self._ready = self._ready[:batch_size], self._ready[batch_size:]
        for group in groups:
            self._feed.finish(prompt_index(group))
        tally = self._replace_tally({prompt_index(group) for group in self._ready})
        self._limit = self._batches_ahead * batch_size
        self._start_groups()
        measure = partial(tally.metrics, version)
        groups = sorted(groups, key=prompt_index)
        return Batch(groups, tally.generated_tokens, measure, tally.removed, overlapped=True)

    def _start_groups(self) -> None:
        """Starts as many groups as the limit allows."""
        while not self._paused and self._in_flight + len(self._ready) < self._limit:
            self._in_flight += 1
            self._tally.submitted += 1
            task = asyncio.create_task(self._run())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _run(self) -> None:
        """Produces the group of the next prompt; a dropped group is replaced by another."""
        try:
            group = await self._produce(await self._feed.take())
        except Exception as error:
            self._failures.append(error)
            return
        finally:
            self._in_flight -= 1
            self._group_done.set()
        if group is None:
            self._start_groups()
        elif _oldest_version(group) < self._oldest_allowed:
            self._drop({prompt_index(group)}, "staleness", "too_old")
            self._start_groups()
        else:
            self._ready.append(group)

    def _drop_stale(self) -> None:
        """Drops groups that are too old to train on; they do not count in the metrics of staleness."""
        oldest = self._oldest_allowed
        stale = {prompt_index(group) for group in self._ready if _oldest_version(group) < oldest}
        self._ready = [group for group in self._ready if prompt_index(group) not in stale]
        self._drop(stale, "staleness", "too_old")


class DrainBeforeUpdate:
    """Updates engines only while nothing is generated, so that every sample has a single version."""

    def __init__(self, engines: Engines, source: AsynchronousSource) -> None:
        self._engines = engines
        self._source = source

    async def update_weights(self, update: WeightUpdate) -> int:
        """Waits for the groups in flight, then updates; returns the version that all engines confirm."""
        await self._source.drain()
        try:
            return await self._engines.update_weights(update)
        finally:
            self._source.resume()


def _oldest_version(group: Group) -> int:
    """Returns the oldest version that made a token of the group; sys.maxsize where none has a version."""
    return min((sample.oldest_version for sample in group.samples if sample.versions), default=sys.maxsize)
