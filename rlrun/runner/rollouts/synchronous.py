"""Steps 1 to 4 of the loop: prompts to groups worth training on.

    prompts ──▶ engines ──▶ decode ──▶ rewards ──▶ filters ──▶ kept, ordered by prompt index
       ▲                                              │
       └──── more, while in flight + kept < P ◀───────┴──▶ dropped, counted by filter and reason

Each group runs on its own as the engines finish it. In deterministic mode groups go in whole waves, and
nothing depends on which is first.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlrun.plugins.types import Group, Prompt
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.host.background import cancel_all
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.rollouts.deadlines import GRACE_SECONDS, abort_all
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.group_producer import GroupProducer
from rlrun.runner.rollouts.grouping import prompt_index
from rlrun.runner.rollouts.prompt_feed import FILTERS, joined_state, split_state
from rlrun.runner.rollouts.tally import Tally
from rlrun.specs.sections.rollout import RolloutSpec


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step trains on."""

    groups: list[Group]
    """Ordered by prompt index."""
    generated_tokens: int = 0
    """Response tokens that engines made, those of dropped groups included."""
    measure: Callable[[], dict[str, float]] = dict
    """Computes `rollout/…` over every group that was scored, kept or not; called while the trainer works."""
    overlapped: bool = False
    """Engines worked for it while the trainer did, not only while the driver waited."""


class SynchronousSource:
    """Batches of groups that the policy answered."""

    def __init__(
        self,
        spec: RolloutSpec,
        policy: RolloutContext,
        prompts: Prefetcher[Prompt],
        filters: Filters,
    ) -> None:
        """`prompts` come in batches of `oversample`."""
        self._spec = spec
        self._engines = policy.engines
        self._prompts = prompts
        self._filters = filters
        self._answers = GroupProducer(spec, policy, filters)
        self._collect = self._waves if policy.deterministic else self._stream
        self._finished: set[int] = set()

    async def next(self, version: int) -> Batch:
        """The next P kept groups, from engines that serve `version`. JobError when filters leave too few."""
        tally = Tally()
        kept = await self._collect(tally)
        return Batch(kept, tally.generated_tokens, partial(tally.metrics, version))

    def state(self) -> dict[str, Any]:
        """The place in the data, and what filters remember."""
        return joined_state(self._prompts.state(), self._finished, self._filters.state())

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now, to be read later."""
        return partial(dict, self.state())

    async def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved place, also one that an `OverlappedSource` saved."""
        place, self._finished = split_state(state)
        self._filters.restore(state.get(FILTERS, {}))
        await self._prompts.restore(place)

    async def close(self) -> None:
        """Stop reading ahead."""
        await self._prompts.close()

    async def _stream(self, tally: Tally) -> list[Group]:
        """P groups, first finished first kept."""
        kept: list[Group] = []
        running: set[asyncio.Task[Group | None]] = set()
        enough = asyncio.Event()
        try:
            while len(kept) < self._spec.batch_size:
                if len(running) + len(kept) < self._spec.batch_size and not self._exhausted(tally):
                    prompts = await self._more(tally)
                    answers = [self._answers.one(prompt, lambda: tally, enough) for prompt in prompts]
                    running |= {asyncio.create_task(answer) for answer in answers}
                if not running:
                    return tally.make_do(kept, self._spec.batch_size)
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                kept += [group for task in done if (group := task.result())]
        finally:
            enough.set()
            await self._abort(running)
        return sorted(kept, key=prompt_index)[: self._spec.batch_size]

    async def _waves(self, tally: Tally) -> list[Group]:
        """The first P groups kept in the order of prompts, generated and scored a whole wave at a time."""
        kept: list[Group] = []
        while len(kept) < self._spec.batch_size:
            if self._exhausted(tally):
                return tally.make_do(kept, self._spec.batch_size)
            kept += await self._answers.wave(await self._more(tally), tally)
        return kept[: self._spec.batch_size]

    async def _more(self, tally: Tally) -> list[Prompt]:
        read = await self._prompts.next()
        prompts = [one for one in read if one.index not in self._finished]
        self._finished.difference_update(one.index for one in read)
        tally.submitted += len(prompts)
        return prompts

    def _exhausted(self, tally: Tally) -> bool:
        return tally.submitted >= self._spec.max_attempts * self._spec.batch_size

    async def _abort(self, running: set[asyncio.Task[Group | None]]) -> None:
        """End what is still being generated; nothing of this step runs on when the weights change."""
        if not running:
            return
        try:
            await abort_all(self._engines)
            await asyncio.wait(running, timeout=GRACE_SECONDS)
        finally:
            await cancel_all(running)
