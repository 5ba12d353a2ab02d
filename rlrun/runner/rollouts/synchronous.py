"""Steps 1 to 4 of the loop while the trainer waits: prompts to the groups of one batch.

    prompts ──▶ engines ──▶ decode ──▶ rewards ──▶ filters ──▶ kept groups, ordered by prompt index
       ▲                                              │
       └── more, while in flight + kept < P ◀─────────┴──▶ dropped groups, counted by filter and reason
           (`replace_dropped = false`: P prompts, and more only if no group is kept)

Each group is scored and filtered as soon as the engines finish it. In deterministic mode whole batches of
groups are generated in lockstep, and nothing depends on which group is finished first.
"""

import asyncio
from functools import partial

from rlrun.plugins.types import Group, Prompt
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.host.background import cancel_all
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.rollouts.deadlines import GRACE_SECONDS, abort_all_requests
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.grouping import prompt_index
from rlrun.runner.rollouts.rollout_source import Batch, RolloutSource
from rlrun.specs.sections.rollout import RolloutSpec


class SynchronousSource(RolloutSource):
    """Generates each batch when it is asked for; surplus groups are discarded."""

    def __init__(
        self, spec: RolloutSpec, policy: RolloutContext, prompts: Prefetcher[Prompt], filters: Filters
    ) -> None:
        super().__init__(spec, policy, prompts, filters)
        self._collect = self._collect_batches if policy.deterministic else self._collect_stream
        self._taken: list[int] = []
        """Prompts taken for the current batch."""

    async def next(self, version: int) -> Batch:
        """Returns the next P kept groups, from engines that serve `version`; without replacement, the kept
        groups of the next P prompts.
        """
        self._taken = []
        kept = await self._collect()
        for index in self._taken:
            self._feed.finish(index)
        tally = self._replace_tally()
        return Batch(kept, tally.generated_tokens, partial(tally.metrics, version), tally.removed)

    async def _collect_stream(self) -> list[Group]:
        """Returns the P groups that are finished first, and aborts the others; without replacement, the kept
        groups of P prompts.
        """
        batch_size = self._spec.batch_size
        kept: list[Group] = []
        running: set[asyncio.Task[Group | None]] = set()
        finished: asyncio.Queue[asyncio.Task[Group | None]] = asyncio.Queue()
        cancelled = asyncio.Event()
        try:
            while not self._is_complete(len(kept), len(running)):
                if self._takes_more(len(kept), len(running)) and not self._is_exhausted():
                    for prompt in await self._take_prompts():
                        task = asyncio.create_task(self._produce(prompt, cancelled))
                        task.add_done_callback(finished.put_nowait)
                        running.add(task)
                if not running:
                    return self._tally.accept_partial_batch(kept, self._fewest_groups)
                done = await _take_all(finished)
                running.difference_update(done)
                kept += [group for task in done if (group := task.result())]
        finally:
            cancelled.set()
            await self._abort(running)
        return sorted(kept, key=prompt_index)[:batch_size]

    async def _collect_batches(self) -> list[Group]:
        """Returns the first P kept groups in the order of prompts, generated a whole batch at a time."""
        kept: list[Group] = []
        while not self._is_complete(len(kept), 0):
            if self._is_exhausted():
                return self._tally.accept_partial_batch(kept, self._fewest_groups)
            kept += await self._producer.produce_batch(await self._take_prompts(), self._tally)
        return kept[: self._spec.batch_size]

    @property
    def _fewest_groups(self) -> int:
        """Returns how many groups a step trains on at least."""
        return self._spec.batch_size if self._spec.replace_dropped else 1

    def _is_complete(self, num_kept: int, num_running: int) -> bool:
        """Returns whether the groups that are kept make a batch."""
        if num_kept >= self._spec.batch_size or self._spec.replace_dropped:
            return num_kept >= self._spec.batch_size
        return num_kept > 0 and not num_running and self._tally.submitted >= self._spec.batch_size

    def _takes_more(self, num_kept: int, num_running: int) -> bool:
        """Returns whether more prompts are taken for a batch that is not complete."""
        if self._spec.replace_dropped:
            return num_running + num_kept < self._spec.batch_size
        return not num_running

    async def _take_prompts(self) -> list[Prompt]:
        prompts = await self._feed.take_batch()
        self._taken += [prompt.index for prompt in prompts]
        self._tally.submitted += len(prompts)
        return prompts

    async def _abort(self, running: set[asyncio.Task[Group | None]]) -> None:
        """Ends the groups that are still generated, so that none is when the weights change."""
        if not running:
            return
        try:
            await abort_all_requests(self._engines)
            await asyncio.wait(running, timeout=GRACE_SECONDS)
        finally:
            await cancel_all(running)


async def _take_all(finished: asyncio.Queue[asyncio.Task[Group | None]]) -> list[asyncio.Task[Group | None]]:
    """Returns the tasks that are finished, at least one.

    `asyncio.wait` would visit each of the groups in flight, which are thousands, whenever one is finished.
    """
    tasks = [await finished.get()]
    while not finished.empty():
        tasks.append(finished.get_nowait())
    return tasks
