"""Steps 2 to 4 for one prompt: generate, decode, score, filter.

prompt ──▶ rollout, engines ──▶ decode ──▶ rewards ──▶ filters ──▶ group to train on, or None if dropped

With `rollout.probe_samples`, the first three run for a part of the samples, and again for the others.

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
from rlrun.runner.contracts.interfaces import Engines, RolloutContext
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
from rlrun.runner.rollouts.probing import has_equal_rewards, split, stopped
from rlrun.runner.rollouts.sessions import SendRequest, empty_generations
from rlrun.runner.rollouts.settings import greedy_settings, rollout_settings, settings_after_probe
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


class _Sender:
    """Sends the requests of one prompt and counts their tokens, until it is cancelled."""

    def __init__(self, engines: Engines, tally: Callable[[], Tally], cancelled: asyncio.Event | None) -> None:
        self.tally = tally
        self._engines = engines
        self._cancelled = cancelled

    @property
    def is_cancelled(self) -> bool:
        """Whether no further requests are sent."""
        return self._cancelled is not None and self._cancelled.is_set()

    async def send(self, request: GenerateRequest) -> list[Generation]:
        """Returns one generation per seed of the request; empty ones once it is cancelled."""
        if self.is_cancelled:
            return empty_generations(request)
        generations = await self._engines.generate(request)
        self.tally().count_request(request, generations)
        return generations


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
        self._others = Executions(policy, settings_after_probe(self._settings, spec.probe_samples or 0))
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

        sender = _Sender(self._policy.engines, tally, cancelled)
        first, others = split(prompt, self._settings.samples_of(prompt), self._spec.probe_samples)
        group = await self._generate(prompt, first, self._executions, sender)
        if group is not None and others is not None:
            if has_equal_rewards(group):
                return self._filter(group, tally(), is_stopped=True)
            rest = await self._generate(prompt, others, self._others, sender)
            group = None if rest is None else Group(prompt, [*group.samples, *rest.samples])
        return None if group is None else self._filter(group, tally())

    async def _generate(
        self, prompt: Prompt, part: Prompt, executions: Executions, sender: "_Sender"
    ) -> Group | None:
        """Returns the scored samples of `part`, the prompt with the number of executions that run now; None
        if they are lost, which is counted, or cancelled.
        """
        tally, samples = sender.tally, executions.first_number + self._settings.samples_of(part)
        try:
            async with self._concurrency:
                responses = await self._respond(part, executions, sender.send)
        except TimeoutError as error:
            tally().count_lost(samples, error, Failure.LATE)
            tally().dropped["generation", "timeout"] += 1
            tally().dropped_samples["generation", "timeout"] += samples
            return None
        except EngineError as error:
            tally().count_lost(samples, error, Failure.ENGINE)
            tally().dropped["generation", "failed"] += 1
            return None
        if sender.is_cancelled:
            return None
        [group] = await self._score([prompt], [responses], tally(), executions.first_number)
        return group

    async def _respond(self, prompt: Prompt, executions: Executions, send: SendRequest) -> _Responses:
        """Runs the executions of a prompt, the greedy one at the same time."""
        if self._greedy is None:
            return _Responses(await executions.run(prompt, send))
        sampled, greedy = await asyncio.gather(
            executions.run(prompt, send),
            self._greedy.run(_once(prompt), send),
            return_exceptions=True,  # both have ended when an error is raised
        )
        return _Responses(_result(sampled), _result(greedy))

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

        parts = [
            split(prompt, self._settings.samples_of(prompt), self._spec.probe_samples) for prompt in prompts
        ]
        firsts = [first for first, _ in parts]
        responses = await self._respond_to_batch(firsts, self._executions, send_batch)
        groups = await self._score(prompts, responses, tally)
        others = {place: rest for place, (_, rest) in enumerate(parts) if rest is not None}
        stopped_places = {place for place in others if has_equal_rewards(groups[place])}
        going_on = {place: rest for place, rest in others.items() if place not in stopped_places}
        if going_on:
            responses = await self._respond_to_batch(list(going_on.values()), self._others, send_batch)
            first_number = self._others.first_number
            rests = await self._score([prompts[place] for place in going_on], responses, tally, first_number)
            for place, rest in zip(going_on, rests, strict=True):
                groups[place] = Group(prompts[place], [*groups[place].samples, *rest.samples])
        filtered = [
            self._filter(group, tally, is_stopped=place in stopped_places)
            for place, group in enumerate(groups)
        ]
        return [group for group in filtered if group is not None]

    async def _respond_to_batch(
        self, prompts: Sequence[Prompt], executions: Executions, send_batch: SendBatch
    ) -> list[_Responses]:
        """Runs all executions in lockstep, and then the greedy ones."""
        capacity = self._policy.pending.capacity
        samples = sum(map(self._settings.samples_of, prompts)) + len(prompts) * (self._greedy is not None)
        seconds = self._settings.timeout * math.ceil(samples / (capacity or samples))
        try:
            async with asyncio.timeout(seconds):
                sampled = await executions.run_batch(prompts, send_batch)
                if self._greedy is None:
                    return [_Responses(own) for own in sampled]
                greedy = await self._greedy.run_batch([_once(prompt) for prompt in prompts], send_batch)
        except TimeoutError:
            raise JobError(
                f"{len(prompts)} prompts were not answered within {seconds:g} s, and in deterministic "
                "mode none can be replaced; raise rollout.request_timeout or lower max_response_tokens",
                code=Code.STARVED,
            ) from None
        return [_Responses(*both) for both in zip(sampled, greedy, strict=True)]

    async def _score(
        self,
        prompts: Sequence[Prompt],
        responses: Sequence[_Responses],
        tally: Tally,
        first_number: int = 0,
    ) -> list[Group]:
        """Returns the scored groups, whose samples have the rewards of the greedy responses."""
        chat = self._policy.tokenizer
        groups = groups_of(prompts, [each.executions for each in responses], chat, first_number)
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

    def _filter(self, group: Group, tally: Tally, *, is_stopped: bool = False) -> Group | None:
        """Returns the group to train on, or None if it is dropped; both are counted."""
        tally.scored.append(group)
        tally.count_endings(group.samples)
        num_late = sum(sample.status is Status.ABORTED for sample in group.samples)
        if num_late:
            tally.dropped_samples["generation", "timeout"] += num_late
        finished = without_status(group, Status.FAILED, Status.ABORTED)
        if self._observe is not None and finished.samples:
            self._observe(finished)
        result = stopped(finished) if is_stopped else self._apply_filters(finished, some_late=num_late > 0)
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
    return samples[-1].reward if samples and samples[-1].is_scored else None


def group_limit(max_samples: int | None, samples_per_group: int) -> AbstractAsyncContextManager[None]:
    """Limits how many groups are generated at once, to at most `max_samples` samples; None: no limit."""
    return (
        nullcontext() if max_samples is None else asyncio.Semaphore(max(1, max_samples // samples_per_group))
    )
