"""Held-out evaluation: the engines and rewards of training, with its own prompts, settings and seeds.

An evaluation shares no state with training: its prompts are read once, and its seeds are hashed from the
dataset's name.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rlrun.plugins.generation import Trajectory
from rlrun.plugins.types import Group, Prompt, Status
from rlrun.runner.contracts.errors import EngineError, JobError
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.host.background import cancel_all
from rlrun.runner.records.metrics import (
    add_prefix,
    execution_rewards,
    failure_counts,
    failure_metrics,
    interval_metrics,
    majority_rates,
    pass_estimates,
    sample_metrics,
)
from rlrun.runner.records.statistics import clustered_mean
from rlrun.runner.rollouts.executions import Executions
from rlrun.runner.rollouts.group_producer import group_limit
from rlrun.runner.rollouts.grouping import groups_of
from rlrun.runner.rollouts.settings import RolloutSettings, rollout_settings
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.evaluation import EvalDatasetSpec
from rlrun.specs.sections.rollout import RolloutSpec

ShowProgress = Callable[[str, int, int], None]
"""Takes the name of an activity, how many items of it are done, and how many there are."""


KeepGroups = Callable[[str, Sequence[Group]], None]
"""Takes the name of a dataset and groups of it that are generated and scored."""

BLOCK_SAMPLES = 512
"""Samples that a deterministic evaluation generates together, unless more run at once anyway. How a sample's
numbers are rounded depends on the samples beside it, so an interrupted block is generated again as a whole.
"""


def _show_nothing(activity: str, done: int, total: int) -> None:
    """Shows no progress."""


def _keep_nothing(dataset: str, groups: Sequence[Group]) -> None:
    """Keeps no groups."""


@dataclass(frozen=True, slots=True)
class EvalSet:
    """One evaluation dataset with its prompts and settings."""

    name: str
    prompts: Sequence[Prompt]
    settings: RolloutSettings
    pass_threshold: float
    """A sample with at least this reward passes, for pass@k."""
    policy: RolloutContext | None = None
    """Answers the prompts and scores the samples, if the dataset has rewards or a rollout plugin of its own;
    None: in the same way as in training."""


def eval_set(dataset: EvalDatasetSpec, rollout: RolloutSpec, prompts: Sequence[Prompt]) -> EvalSet:
    """Returns a dataset with its settings; those that are not of evaluations come from `[rollout]`."""
    return EvalSet(dataset.name, prompts, rollout_settings(rollout, dataset), dataset.pass_threshold)


@dataclass(frozen=True, slots=True)
class EvalResult:
    """The result of one evaluation on every dataset."""

    metrics: dict[str, float]
    """`eval/<dataset>/…`"""
    groups: Mapping[str, Sequence[Group]]
    """The scored groups of each dataset, by its name."""


class Evaluator:
    """Evaluates the policy on every evaluation dataset.

    prompts ──▶ executions ──▶ rewards ──▶ `keep` ──▶ metrics
       without those that an earlier launch kept ──────▲
    """

    def __init__(
        self,
        sets: Sequence[EvalSet],
        policy: RolloutContext,
        timeout: float,
        concurrency: int | None = None,
        *,
        show: ShowProgress = _show_nothing,
        keep: KeepGroups = _keep_nothing,
        earlier: Mapping[str, Sequence[Group]] | None = None,
    ) -> None:
        """`timeout` is in seconds per prompt.

        `concurrency` limits how many samples are generated at once (None: all), so that none runs out of time
        only because it waits for other samples. `show` is called as prompts are finished, and `keep` with
        groups that are scored, none of whose samples failed. `earlier` has groups that an earlier launch
        kept: they are not generated again.
        """
        self._show = show
        self._keep = keep
        self._earlier = earlier or {}
        self._sets = sets
        self._policy = policy
        self._timeout = timeout
        self._concurrency = concurrency
        self._num_finished = 0

    async def run(self) -> EvalResult:
        """Returns metrics and samples of the weights that the engines serve. JobError at the timeout."""
        metrics: dict[str, float] = {}
        groups: dict[str, Sequence[Group]] = {}
        self._num_finished = 0
        for dataset in self._sets:
            groups[dataset.name] = answered = await self._evaluate(dataset)
            metrics |= add_prefix(
                f"eval/{dataset.name}", evaluation_metrics(answered, dataset.pass_threshold)
            )
        return EvalResult(metrics, groups)

    async def _evaluate(self, dataset: EvalSet) -> Sequence[Group]:
        answered = _same_prompts(dataset, self._earlier.get(dataset.name, ()))
        if answered:
            self._show_finished(len(answered))
        try:
            async with asyncio.timeout(self._timeout * max(1, len(dataset.prompts))):
                await self._answer(dataset, answered)
        except TimeoutError:
            raise JobError(
                f"evaluation on {dataset.name!r}: no answer within {self._timeout:g} s per prompt",
                code=Code.STARVED,
            ) from None
        return [answered[prompt.index] for prompt in dataset.prompts]

    async def _answer(self, dataset: EvalSet, answered: dict[int, Group]) -> None:
        """Adds the groups of the prompts that are not answered yet, by the prompts' indices."""
        policy = dataset.policy or self._policy
        executions = Executions(policy, dataset.settings)
        if policy.deterministic:
            size = max(1, max(BLOCK_SAMPLES, self._concurrency or 0) // dataset.settings.samples)
            for first in range(0, len(dataset.prompts), size):
                block = dataset.prompts[first : first + size]
                if any(prompt.index not in answered for prompt in block):
                    trajectories = await executions.run_batch(block, policy.engines.generate_batch)
                    await self._finish(dataset, block, trajectories, answered)
            return

        limit = group_limit(self._concurrency, dataset.settings.samples)
        prompts = [prompt for prompt in dataset.prompts if prompt.index not in answered]
        errors: list[Exception] = []

        async def run(prompt: Prompt) -> None:
            try:
                async with limit:
                    trajectories = await executions.run(prompt, policy.engines.generate)
            except (TimeoutError, EngineError) as error:
                errors.append(error)
                if len(errors) == len(dataset.prompts):
                    raise  # every prompt failed
                trajectories = executions.failed(prompt, error)
            await self._finish(dataset, [prompt], [trajectories], answered)

        tasks = [asyncio.create_task(run(prompt)) for prompt in prompts]
        try:
            await asyncio.gather(*tasks)
        finally:
            await cancel_all(tasks)

    async def _finish(
        self,
        dataset: EvalSet,
        prompts: Sequence[Prompt],
        trajectories: Sequence[Sequence[Sequence[Trajectory]]],
        answered: dict[int, Group],
    ) -> None:
        """Scores the groups of some prompts, adds them to `answered`, and keeps those that are whole."""
        policy = dataset.policy or self._policy
        groups = groups_of(prompts, trajectories, policy.tokenizer)
        await policy.grader.score([sample for group in groups for sample in group.samples])
        new = [group for group in groups if group.prompt.index not in answered]
        answered |= {group.prompt.index: group for group in groups}
        self._keep(
            dataset.name,
            [group for group in new if all(sample.status.is_finished for sample in group.samples)],
        )
        self._show_finished(len(new))

    def _show_finished(self, num_prompts: int) -> None:
        """Shows that so many more prompts of all datasets are finished."""
        self._num_finished += num_prompts
        self._show("evaluation", self._num_finished, sum(len(dataset.prompts) for dataset in self._sets))


def _same_prompts(dataset: EvalSet, groups: Sequence[Group]) -> dict[int, Group]:
    """Returns the groups by the index of their prompt, without those whose row has changed."""
    rows = {prompt.index: prompt.row.id for prompt in dataset.prompts}
    return {
        group.prompt.index: group for group in groups if rows.get(group.prompt.index) == group.prompt.row.id
    }


def evaluation_metrics(groups: Sequence[Group], threshold: float) -> Mapping[str, float]:
    """Returns mean reward, lengths, truncation, pass@k and the majority's answer of the finished samples.

    `<name>/low` and `<name>/high` are the ends of a 95 % interval. Samples that failed or ran out of time are
    only counted, because they say nothing about the policy. Without a finished sample there is no mean
    reward.
    """
    samples = [sample for group in groups for sample in group.samples]
    finished_by_group = [
        [sample for sample in group.samples if sample.status.is_finished] for group in groups
    ]
    rewards = [execution_rewards(finished) for finished in finished_by_group]
    all_finished = [sample for finished in finished_by_group for sample in finished]
    metrics = interval_metrics("reward", clustered_mean(rewards))
    rates = pass_estimates(rewards, threshold) | majority_rates(finished_by_group, threshold)
    for name, estimates in rates.items():
        metrics |= interval_metrics(name, clustered_mean([[estimate] for estimate in estimates]))
    metrics |= sample_metrics(all_finished)
    metrics["failed"] = len(samples) - len(all_finished)
    metrics |= failure_metrics(failure_counts(samples))
    metrics["late"] = sum(sample.status is Status.ABORTED for sample in samples)
    return metrics
