"""Steps 2 to 4 for one prompt: generate, decode, score, filter.

prompt ──▶ rollout, engines ──▶ decode ──▶ rewards ──▶ filters ──▶ group to train on, or None if dropped

With `needs.greedy_reward`, the rollout also runs once at temperature 0. The greedy response is scored with
the group, whose samples only keep its reward. A group whose greedy response has no reward is dropped.
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TypeVar

from rlrun.plugins.failures import Failure
from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.types import Group, Prompt, Sample, Status
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import EngineError, JobError
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.rollouts.executions import Executions
from rlrun.runner.rollouts.filtering import FilterResult, Filters
from rlrun.runner.rollouts.grouping import (
    best_and_worst,
    greedy_samples,
    groups_of,
    mask_truncated,
    without_status,
)
from rlrun.runner.rollouts.lockstep import SendBatch
from rlrun.runner.rollouts.sessions import SendRequest, empty_generations
from rlrun.runner.rollouts.settings import greedy_settings, rollout_settings
from rlrun.runner.rollouts.tally import Tally
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.rollout import RolloutSpec

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class _Responses:
    """The trajectories of one prompt."""

    executions: Sequence[Sequence[Trajectory]]
    greedy: Sequence[Sequence[Trajectory]] = ()
    """Those of the greedy execution, if there is one."""


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
        self._settings = rollout_settings(spec)
        self._executions = Executions(policy, self._settings)
        self._greedy = (
            Executions(policy, greedy_settings(self._settings)) if policy.needs.greedy_reward else None
        )
        self._concurrency = group_limit(spec.max_concurrency, policy.needs.responses(spec.samples_per_prompt))

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
                responses = await self._respond(prompt, send)
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
        [group] = await self._score([prompt], [responses], tally())
        return self._filter(group, tally())

    async def _respond(self, prompt: Prompt, send: SendRequest) -> _Responses:
        """Runs the executions of a prompt, the greedy one at the same time."""
        if self._greedy is None:
            return _Responses(await self._executions.run(prompt, send))
        executions, greedy = await asyncio.gather(
            self._executions.run(prompt, send),
            self._greedy.run(_once(prompt), send),
            return_exceptions=True,  # both have ended when an error is raised
        )
        return _Responses(_result(executions), _result(greedy))

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
        samples = sum(map(self._settings.samples_of, prompts)) + len(prompts) * (self._greedy is not None)
        seconds = self._settings.timeout * math.ceil(samples / (capacity or samples))
        try:
            async with asyncio.timeout(seconds):
                responses = await self._respond_to_batch(prompts, send_batch)
        except TimeoutError:
            raise JobError(
                f"{len(prompts)} prompts were not answered within {seconds:g} s, and in deterministic "
                "mode none can be replaced; raise rollout.request_timeout or lower max_response_tokens",
                code=Code.STARVED,
            ) from None
        groups = await self._score(prompts, responses, tally)
        return [group for scored in groups if (group := self._filter(scored, tally))]

    async def _respond_to_batch(self, prompts: Sequence[Prompt], send_batch: SendBatch) -> list[_Responses]:
        """Runs all executions in lockstep, and then the greedy ones."""
        executions = await self._executions.run_batch(prompts, send_batch)
        if self._greedy is None:
            return [_Responses(own) for own in executions]
        greedy = await self._greedy.run_batch([_once(prompt) for prompt in prompts], send_batch)
        return [_Responses(*both) for both in zip(executions, greedy, strict=True)]

    async def _score(
        self,
        prompts: Sequence[Prompt],
        responses: Sequence[_Responses],
        tally: Tally,
    ) -> list[Group]:
        """Returns the scored groups, whose samples have the rewards of the greedy responses."""
        chat = self._policy.tokenizer
        groups = groups_of(prompts, [each.executions for each in responses], chat)
        greedy = greedy_samples(prompts, [each.greedy for each in responses], chat)
        samples = [sample for group in groups for sample in group.samples]
        samples += [sample for own in greedy for sample in own]
        tally.record_failures(samples)
        await self._policy.grader.score(samples)
        for group, own in zip(groups, greedy, strict=True):
            reward = _reward_of(own)
            for sample in group.samples:
                sample.greedy_reward = reward
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
        if self._policy.needs.pairs:
            _take_pair(result)
        tally.count_filtered(result)
        kept = {sample.id for sample in result.group.samples} if result.dropped is None else set()
        if removed := [sample for sample in group.samples if sample.id not in kept]:
            tally.removed.append(Group(group.prompt, removed))
        return result.group if result.dropped is None else None

    def _apply_filters(self, group: Group, *, some_late: bool) -> FilterResult:
        if not group.samples:
            return FilterResult(group, ("generation", "timeout" if some_late else "failed"))
        if self._greedy is not None and group.samples[0].greedy_reward is None:
            return FilterResult(group, ("generation", "no_greedy_reward"))
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


def _take_pair(result: FilterResult) -> None:
    """Leaves the best and the worst sample in a group that may be trained on; drops it if it has no pair."""
    if result.dropped is not None and not result.is_spare:
        return
    if (pair := best_and_worst(result.group)) is not None:
        result.group = pair
    else:
        result.dropped, result.is_spare = ("generation", "no_pair"), False


def _once(prompt: Prompt) -> Prompt:
    """Returns the prompt for a single execution, also where a data source chose another number."""
    return replace(prompt, samples=None)


def _result(ended: Result | BaseException) -> Result:
    """Returns the result of an execution that has ended, or raises its error."""
    if isinstance(ended, BaseException):
        raise ended
    return ended


def _reward_of(samples: Sequence[Sample]) -> float | None:
    """Returns the reward of the execution with these samples; None if it has none."""
    if not samples or not samples[-1].status.is_finished or not math.isfinite(samples[-1].reward):
        return None
    return samples[-1].reward


def group_limit(max_samples: int | None, samples_per_group: int) -> AbstractAsyncContextManager[None]:
    """Limits how many groups are generated at once, to at most `max_samples` samples; None: no limit."""
    return (
        nullcontext() if max_samples is None else asyncio.Semaphore(max(1, max_samples // samples_per_group))
    )
