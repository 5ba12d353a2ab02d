"""Held-out evaluation: the same engines and rewards as training, its own prompts, settings and seeds.

Nothing here is shared with the training state: prompts are read once, seeds hashed from the dataset's name.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from rlrun.plugins.generation import Trajectory
from rlrun.plugins.types import Group, Prompt, Status
from rlrun.runner.contracts.errors import EngineError, JobError
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.records.metrics import execution_rewards, pass_rates, prefixed, sample_metrics
from rlrun.runner.rollouts.executions import Executions
from rlrun.runner.rollouts.group_producer import room_for, sampling_of, wanted_of
from rlrun.runner.rollouts.grouping import groups_of
from rlrun.runner.rollouts.sessions import RolloutSettings
from rlrun.specs.sections.evaluation import EvalDatasetSpec, EvalSpec
from rlrun.specs.sections.rollout import RolloutSpec

Number = TypeVar("Number", int, float)

Show = Callable[[str, int, int], None]
"""Takes the name of some work, how much of it is done, and how much there is."""


def _show_nothing(what: str, done: int, total: int) -> None:
    """Shows no progress."""


@dataclass(frozen=True, slots=True)
class EvalSet:
    """One dataset, ready to be answered."""

    name: str
    prompts: Sequence[Prompt]
    wanted: RolloutSettings
    pass_threshold: float


def eval_set(
    dataset: EvalDatasetSpec, defaults: EvalSpec, rollout: RolloutSpec, prompts: Sequence[Prompt]
) -> EvalSet:
    """Settings of a dataset: its own, else `[eval]`'s, else `[rollout]`'s."""

    sampling = replace(
        sampling_of(rollout),
        temperature=_first(dataset.temperature, defaults.temperature, rollout.temperature),
        top_p=_first(dataset.top_p, defaults.top_p, rollout.top_p),
        max_new_tokens=_first(
            dataset.max_response_tokens, defaults.max_response_tokens, rollout.max_response_tokens
        ),
    )
    samples = _first(dataset.samples_per_prompt, defaults.samples_per_prompt, rollout.samples_per_prompt)
    wanted = wanted_of(rollout, f"eval-{dataset.name}", samples, sampling)
    return EvalSet(dataset.name, prompts, wanted, dataset.pass_threshold)


def _first(own: Number | None, section: Number | None, rollout: Number) -> Number:
    if own is not None:
        return own
    return section if section is not None else rollout


class Evaluator:
    """Answers and grades every dataset."""

    def __init__(
        self,
        sets: Sequence[EvalSet],
        policy: RolloutContext,
        timeout: float,
        concurrency: int | None = None,
        *,
        show: Show = _show_nothing,
    ) -> None:
        """`timeout` is the seconds a prompt may take; `concurrency` the samples asked for at a time (None:
        all), so that none is late only because it waited for the others. `show` is called as prompts are
        answered.
        """
        self._show = show
        self._sets = sets
        self._policy = policy
        self._timeout = timeout
        self._concurrency = concurrency

    async def run(self) -> dict[str, float]:
        """`eval/<dataset>/…` of the weights that the engines serve. JobError where no answer comes."""
        metrics: dict[str, float] = {}
        self._answered = 0
        for one in self._sets:
            metrics |= prefixed(
                f"eval/{one.name}", evaluation_metrics(await self._answer(one), one.pass_threshold)
            )
        return metrics

    async def _answer(self, one: EvalSet) -> list[Group]:
        try:
            async with asyncio.timeout(self._timeout * max(1, len(one.prompts))):
                left = await self._run(one, Executions(self._policy, one.wanted))
        except TimeoutError:
            raise JobError(
                f"evaluation on {one.name!r}: no answer within {self._timeout:g} s a prompt"
            ) from None
        groups = groups_of(one.prompts, left, self._policy.tokenizer)
        await self._policy.grader.score([sample for group in groups for sample in group.samples])
        return groups

    async def _run(self, one: EvalSet, executions: Executions) -> Sequence[Sequence[Sequence[Trajectory]]]:
        if self._policy.deterministic:
            trajectories = await executions.wave(one.prompts, self._policy.engines.generate_batch)
            self._count(len(one.prompts))
            return trajectories

        room = room_for(self._concurrency, one.wanted.samples)
        errors: list[Exception] = []

        async def answer(prompt: Prompt) -> list[list[Trajectory]]:
            try:
                async with room:
                    trajectories = await executions.of(prompt, self._policy.engines.generate)
            except (TimeoutError, EngineError) as error:
                errors.append(error)
                if len(errors) == len(one.prompts):
                    raise  # no prompt has an answer
                trajectories = executions.failed(prompt, error)
            self._count(1)
            return trajectories

        return await asyncio.gather(*map(answer, one.prompts))

    def _count(self, prompts: int) -> None:
        """Shows that so many more prompts are answered, of all datasets."""
        self._answered += prompts
        self._show("evaluation", self._answered, sum(len(one.prompts) for one in self._sets))


def evaluation_metrics(groups: Sequence[Group], threshold: float) -> Mapping[str, float]:
    """Mean reward, lengths, truncation and pass@k of the samples that came to an end.

    One that failed, or that our deadline cut short, says nothing of the policy: it is only counted. Without a
    sample that came to an end there is no reward either.
    """
    samples = [sample for group in groups for sample in group.samples]
    finished = [[sample for sample in group.samples if sample.status.is_finished] for group in groups]
    rewards = [execution_rewards(own) for own in finished]
    flat = [reward for group in rewards for reward in group]
    ended = [sample for own in finished for sample in own]
    metrics = {"reward": math.fsum(flat) / len(flat)} if flat else {}
    metrics |= pass_rates(rewards, threshold) | sample_metrics(ended)
    metrics["failed"] = len(samples) - len(ended)
    metrics["late"] = sum(sample.status is Status.ABORTED for sample in samples)
    return metrics
