"""Steps 2 to 4 for one prompt: generate, decode, score, filter.

prompt ──▶ rollout, engines ──▶ decode ──▶ rewards ──▶ filters ──▶ group to train on, or None if dropped
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

from rlrun.plugins.failures import Failure
from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.types import Group, Prompt, Status
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import EngineError, JobError
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.rollouts.executions import Executions
from rlrun.runner.rollouts.filtering import FilterResult, Filters
from rlrun.runner.rollouts.grouping import groups_of, mask_truncated, without_status
from rlrun.runner.rollouts.sessions import empty_generations
from rlrun.runner.rollouts.settings import rollout_settings
from rlrun.runner.rollouts.tally import Tally
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.rollout import RolloutSpec


class GroupProducer:
    """Produces a scored and filtered group of samples for a prompt."""

    def __init__(
        self,
        spec: RolloutSpec,
        policy: RolloutContext,
        filters: Filters,
        observe: Callable[[Group], None] | None = None,
    ) -> None:
        """`observe` is called with each scored group, without its failed samples."""
        self._spec = spec
        self._observe = observe
        self._policy = policy
        self._filters = filters
        self._concurrency = group_limit(spec.max_concurrency, spec.samples_per_prompt)
        self._settings = rollout_settings(spec)
        self._executions = Executions(policy, self._settings)

    async def produce(
        self, prompt: Prompt, tally: Callable[[], Tally], cancelled: asyncio.Event | None = None
    ) -> Group | None:
        """Returns the group of a prompt; None if it is dropped, or if `cancelled` is set before its end.

        `tally` returns the current tally each time something is counted, because a group may take several
        steps. Once `cancelled` is set, no further requests are sent.
        """

        async def send(request: GenerateRequest) -> list[Generation]:
            if cancelled is not None and cancelled.is_set():
                return empty_generations(request)
            generations = await self._policy.engines.generate(request)
            tally().count_request(request, generations)
            return generations

        samples = self._settings.samples_of(prompt)
        try:
            async with self._concurrency:
                trajectories = await self._executions.run(prompt, send)
        except TimeoutError as error:
            tally().count_lost(samples, error, Failure.LATE)
            tally().dropped["generation", "timeout"] += 1
            tally().dropped_samples["generation", "timeout"] += samples
            return None
        except EngineError as error:
            tally().count_lost(samples, error, Failure.ENGINE)
            tally().dropped["generation", "failed"] += 1
            return None
        if cancelled is not None and cancelled.is_set():
            return None
        [group] = await self._score([prompt], [trajectories], tally())
        return self._filter(group, tally())

    async def produce_batch(self, prompts: Sequence[Prompt], tally: Tally) -> list[Group]:
        """Returns the groups of all prompts that are not dropped, in order, generated in lockstep.

        Raises JobError if they take longer than `request_timeout` for each round that the engines need to
        take all samples.
        """

        async def send_batch(requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
            answers = await self._policy.engines.generate_batch(requests)
            for request, generations in zip(requests, answers, strict=True):
                tally.count_request(request, generations)
            return answers

        capacity = self._policy.pending.capacity
        samples = sum(map(self._settings.samples_of, prompts))
        seconds = self._settings.timeout * math.ceil(samples / (capacity or samples))
        try:
            async with asyncio.timeout(seconds):
                trajectories = await self._executions.run_batch(prompts, send_batch)
        except TimeoutError:
            raise JobError(
                f"{len(prompts)} prompts were not answered within {seconds:g} s, and in deterministic "
                "mode none can be replaced; raise rollout.request_timeout or lower max_response_tokens",
                code=Code.STARVED,
            ) from None
        groups = await self._score(prompts, trajectories, tally)
        return [group for scored in groups if (group := self._filter(scored, tally))]

    async def _score(
        self,
        prompts: Sequence[Prompt],
        trajectories: Sequence[Sequence[Sequence[Trajectory]]],
        tally: Tally,
    ) -> list[Group]:
        groups = groups_of(prompts, trajectories, self._policy.tokenizer)
        samples = [sample for group in groups for sample in group.samples]
        tally.record_failures(samples)
        await self._policy.grader.score(samples)
        return groups

    def _filter(self, group: Group, tally: Tally) -> Group | None:
        """Returns the group to train on, or None if it is dropped; both are counted."""
        tally.scored.append(group)
        tally.count_endings(group.samples)
        num_late = sum(sample.status is Status.ABORTED for sample in group.samples)
        if num_late:
            tally.dropped_samples["generation", "timeout"] += num_late
        finished = without_status(group, Status.FAILED, Status.ABORTED)
        if self._observe is not None and finished.samples:
            self._observe(finished)
        result = self._apply_filters(finished, some_late=num_late > 0)
        tally.count_filtered(result)
        kept = {id(sample) for sample in result.group.samples} if result.dropped is None else set()
        if removed := [sample for sample in group.samples if id(sample) not in kept]:
            tally.removed.append(Group(group.prompt, removed))
        return result.group if result.dropped is None else None

    def _apply_filters(self, group: Group, *, some_late: bool) -> FilterResult:
        if not group.samples:
            return FilterResult(group, ("generation", "timeout" if some_late else "failed"))
        if self._spec.truncated == "mask":
            mask_truncated(group)
        if self._spec.truncated == "drop":
            return self._filter_untruncated(group)
        return self._filters.apply(group)

    def _filter_untruncated(self, group: Group) -> FilterResult:
        """Drops and counts truncated samples, and runs the filters on the others."""
        untruncated = without_status(group, Status.TRUNCATED)
        if untruncated.samples:
            result = self._filters.apply(untruncated)
        else:
            result = FilterResult(untruncated, ("truncated", "all"))
        if num_truncated := len(group.samples) - len(untruncated.samples):
            result.dropped_samples["generation", "truncated"] += num_truncated
        return result


def group_limit(max_samples: int | None, samples_per_group: int) -> AbstractAsyncContextManager[None]:
    """Limits how many groups are generated at once, to at most `max_samples` samples; None: no limit."""
    return (
        nullcontext() if max_samples is None else asyncio.Semaphore(max(1, max_samples // samples_per_group))
    )
