"""Base of the sources whose groups the engines generate: synchronous, asynchronous and partial.

Each reads prompts through a `PromptFeed`, produces groups with a `GroupProducer`, and counts into a `Tally`
that is exchanged when a batch is handed out. They differ in when they generate, and in what they keep between
batches.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlrun.plugins.types import Group, Prompt
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.prompts.prefetcher import Prefetcher
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.group_producer import GroupProducer
from rlrun.runner.rollouts.prompt_feed import FILTERS, PromptFeed
from rlrun.runner.rollouts.tally import Tally
from rlrun.specs.sections.rollout import RolloutSpec


@dataclass(frozen=True, slots=True)
class Batch:
    """The groups that one step trains on."""

    groups: list[Group]
    """Ordered by prompt index."""
    generated_tokens: int = 0
    """Response tokens that engines generated, including those of dropped groups."""
    measure: Callable[[], dict[str, float]] = dict
    """Computes `rollout/…` over every scored group, kept or not; called while the trainer works."""
    removed: Sequence[Group] = ()
    """The samples that were scored since the last batch and are not trained on, by prompt."""
    overlapped: bool = False
    """The engines generated it while the trainer worked, not only while the driver waited for it."""


class RolloutSource(ABC):
    """A source of batches that the policy's engines generate."""

    def __init__(
        self, spec: RolloutSpec, policy: RolloutContext, prompts: Prefetcher[Prompt], filters: Filters
    ) -> None:
        """`prompts` come in batches of `oversample`."""
        self._spec = spec
        self._engines = policy.engines
        self._execution_limit = policy.limit
        self._filters = filters
        self._steering = prompts.steering
        observe = self._steering.observe if self._steering is not None else None
        self._producer = GroupProducer(spec, policy, filters, observe)
        self._feed = PromptFeed(prompts)
        self._tally = Tally()

    @abstractmethod
    async def next(self, version: int) -> Batch:
        """Returns the next P groups, where the trainer holds `version`; JobError when too few are kept."""

    def state(self) -> dict[str, Any]:
        """Returns the position in the data and the filters' states, as JSON values.

        Prompts that are neither trained on nor dropped are generated again after a resume.
        """
        return self.snapshot()()

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Returns a function that returns the state as it is now, to be called later."""
        return partial(dict, self._feed.state() | {FILTERS: self._filters.state()})

    async def restore(self, state: dict[str, Any]) -> None:
        """Continues from a saved state, which may be that of another kind of RolloutSource."""
        self._filters.restore(state.get(FILTERS, {}))
        await self._feed.restore(state)

    async def close(self) -> None:
        """Stops reading ahead."""
        await self._feed.close()

    async def _produce(self, prompt: Prompt, cancelled: asyncio.Event | None = None) -> Group | None:
        """Returns the group of a prompt; where it is dropped, returns None and finishes the prompt."""
        group = await self._producer.produce(prompt, lambda: self._tally, cancelled)
        if group is None:
            self._feed.finish(prompt.index)
        return group

    def _drop(self, indices: Collection[int], dropper: str, reason: str) -> None:
        """Counts groups that waited for a batch as dropped, and finishes their prompts."""
        self._tally.drop_waiting(indices, dropper, reason)
        for index in indices:
            self._feed.finish(index)

    def _is_exhausted(self, in_flight: int = 0) -> bool:
        """Returns whether all attempts of a batch are used; groups still `in_flight` do not count."""
        return self._tally.submitted - in_flight >= self._spec.max_attempts * self._spec.batch_size

    def _replace_tally(self, waiting: Collection[int] = ()) -> Tally:
        """Returns the tally of a batch, and starts the next one with the groups of the `waiting` prompts."""
        tally, self._tally = self._tally, self._tally.split(waiting)
        tally.execution_limit = self._execution_limit.take()
        if self._steering is not None:
            tally.steering = self._steering.metrics()
        return tally
