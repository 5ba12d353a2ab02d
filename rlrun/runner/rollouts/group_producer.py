"""Steps 2 to 4 for a prompt: asked, decoded, scored, judged.

prompt ──▶ rollout, engines ──▶ decode ──▶ rewards ──▶ filters ──▶ the group to train on, or None, counted
"""

import asyncio
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

from rlrun.plugins.generation import Generation, Sampling, Trajectory
from rlrun.plugins.types import Group, Prompt, Status
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import EngineError, JobError
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.rollouts.executions import Executions
from rlrun.runner.rollouts.filtering import Filters, Judged
from rlrun.runner.rollouts.grouping import groups_of, mask_truncated, without
from rlrun.runner.rollouts.sessions import RolloutSettings, nothing
from rlrun.runner.rollouts.tally import Tally
from rlrun.specs.sections.rollout import RolloutSpec


class GroupProducer:
    """The policy's answers to prompts, under one spec and its filters."""

    def __init__(self, spec: RolloutSpec, policy: RolloutContext, filters: Filters) -> None:
        self._spec = spec
        self._policy = policy
        self._filters = filters
        self._room = room_for(spec.max_concurrency, spec.samples_per_prompt)
        wanted = wanted_of(spec, "rollout", spec.samples_per_prompt, sampling_of(spec))
        wanted = replace(wanted, record_mask=policy.record_mask)
        self._executions = Executions(policy, wanted)
        self._seconds = wanted.timeout

    async def one(self, prompt: Prompt, tally: Callable[[], Tally], enough: asyncio.Event) -> Group | None:
        """One group from prompt to verdict; None when it is dropped, or no longer wanted.

        `tally` is asked when there is something to count: answers may come steps after they were asked for.
        """

        async def ask(request: GenerateRequest) -> list[Generation]:
            if enough.is_set():
                return [nothing("abort") for _ in request.seeds]
            made = await self._policy.engines.generate(request)
            tally().count(request, made)
            return made

        try:
            async with self._room:
                left = await self._executions.of(prompt, ask)
        except TimeoutError as error:
            tally().failure = f"TimeoutError: {error}"
            tally().dropped["generation", "timeout"] += 1
            tally().dropped_samples["generation", "timeout"] += self._spec.samples_per_prompt
            return None
        except EngineError as error:
            tally().failure = f"{type(error).__name__}: {error}"
            tally().failed += self._spec.samples_per_prompt
            tally().dropped["generation", "failed"] += 1
            return None
        if enough.is_set():
            return None
        [group] = await self._grade([prompt], [left], tally())
        return self._settle(group, tally())

    async def wave(self, prompts: Sequence[Prompt], tally: Tally) -> list[Group]:
        """All groups in one go, in the order of prompts, less those that are dropped.

        JobError past `request_timeout` for each round that the engines need to take all samples.
        """

        async def ask_all(requests: Sequence[GenerateRequest]) -> list[list[Generation]]:
            answers = await self._policy.engines.generate_batch(requests)
            for request, generations in zip(requests, answers, strict=True):
                tally.count(request, generations)
            return answers

        capacity = self._policy.pending.capacity
        samples = len(prompts) * self._spec.samples_per_prompt
        seconds = self._seconds * math.ceil(samples / (capacity or samples))
        try:
            async with asyncio.timeout(seconds):
                left = await self._executions.wave(prompts, ask_all)
        except TimeoutError:
            raise JobError(
                f"{len(prompts)} prompts were not answered within {seconds:g} s, and in deterministic "
                "mode none can be replaced; raise rollout.request_timeout or lower max_response_tokens"
            ) from None
        groups = await self._grade(prompts, left, tally)
        return [group for scored in groups if (group := self._settle(scored, tally))]

    async def _grade(
        self, prompts: Sequence[Prompt], left: Sequence[Sequence[Sequence[Trajectory]]], tally: Tally
    ) -> list[Group]:
        groups = groups_of(prompts, left, self._policy.tokenizer)
        samples = [sample for group in groups for sample in group.samples]
        tally.note_failures(samples)
        await self._policy.grader.score(samples)
        return groups

    def _settle(self, group: Group, tally: Tally) -> Group | None:
        """The group as it is trained on, or None, counted."""
        tally.scored.append(group)
        tally.failed += sum(sample.status is Status.FAILED for sample in group.samples)
        late = sum(sample.status is Status.ABORTED for sample in group.samples)
        if late:
            tally.dropped_samples["generation", "timeout"] += late
        judged = self._judged(without(without(group, Status.FAILED), Status.ABORTED), late=late > 0)
        tally.note_verdicts(judged)
        return judged.group if judged.dropped is None else None

    def _judged(self, group: Group, *, late: bool) -> Judged:
        if not group.samples:
            return Judged(group, ("generation", "timeout" if late else "failed"))
        if self._spec.truncated == "mask":
            mask_truncated(group)
        if self._spec.truncated == "drop":
            return self._judged_whole(group)
        return self._filters.judge(group)

    def _judged_whole(self, group: Group) -> Judged:
        """What filters say of the samples that came to an end; others are dropped, and counted."""
        whole = without(group, Status.TRUNCATED)
        judged = self._filters.judge(whole) if whole.samples else Judged(whole, ("truncated", "all"))
        if cut := len(group.samples) - len(whole.samples):
            judged.dropped_samples["generation", "truncated"] += cut
        return judged


def room_for(concurrency: int | None, samples: int) -> AbstractAsyncContextManager[None]:
    """For as many groups of so many samples as may be asked for at a time; None: for all."""
    return nullcontext() if concurrency is None else asyncio.Semaphore(max(1, concurrency // samples))


def wanted_of(spec: RolloutSpec, purpose: str, samples: int, sampling: Sampling) -> RolloutSettings:
    """Returns what is wanted of the policy for every prompt, within the limits of the spec."""
    longest = spec.prompt_limit + sampling.max_new_tokens
    seconds = spec.seconds_for(sampling.max_new_tokens)
    return RolloutSettings(purpose, samples, sampling, longest, seconds, spec.max_turn_tokens)


def sampling_of(spec: RolloutSpec) -> Sampling:
    """The spec's settings in the words of the engines."""
    return Sampling(
        max_new_tokens=spec.max_response_tokens,
        temperature=spec.temperature,
        top_p=spec.top_p,
        top_k=spec.top_k,
        min_new_tokens=spec.min_response_tokens,
        stop=spec.stop,
        stop_token_ids=spec.stop_token_ids,
    )
