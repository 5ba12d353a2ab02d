"""Compares evaluations on the same prompts, from their saved samples."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlrun.plugins.types import Status
from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.records.packed_lines import read_records
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import rollout_path
from rlrun.runner.records.statistics import Difference, Estimate, clustered_mean, paired_difference
from rlrun.specs.step_names import ROLLOUTS, list_step_paths

Rewards = Mapping[str, Sequence[float]]
"""The rewards of the finished executions of each prompt, by the prompt; empty where all failed."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The saved samples of one evaluation."""

    name: str
    rewards: Mapping[str, Rewards]
    """By dataset."""
    failed: Mapping[str, int]
    """Executions without a reward, by dataset."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One dataset: how each evaluation did, and how it differs from the first one."""

    dataset: str
    name: str
    estimate: Estimate | None
    """None where every sample failed."""
    failed: int
    """Samples that failed or ran out of time, which are left out."""
    difference: Difference | None
    """None for the first evaluation, and where no prompt is in both."""
    only_in_one: int
    """Prompts that only one of the two evaluations has."""

    def as_json(self) -> dict[str, Any]:
        """Returns the comparison as JSON values; None for nan."""
        values = asdict(self)
        for part in ("estimate", "difference"):
            if values[part] is not None:
                values[part] = {name: _finite(value) for name, value in values[part].items()}
        return values


def read_evaluation(folder: RunFolder, step: int | None = None) -> Evaluation:
    """Returns a run's evaluation after `step`; None: the last one. Raises RunFolderError if there is none."""
    steps = list_step_paths(folder.rollouts, ROLLOUTS, "eval")
    chosen = max(steps, default=None) if step is None else step
    if chosen not in steps:
        known = f"it has those of steps {', '.join(map(str, steps))}" if steps else "it has none"
        what = "evaluation" if step is None else f"evaluation of step {step}"
        raise RunFolderError(f"{folder.shown} has no saved {what}: {known}")
    rewards: dict[str, dict[str, dict[str, float]]] = {}
    failed: dict[str, int] = {}
    for record in read_records(rollout_path(folder.rollouts, chosen, "eval")):
        dataset = record["dataset"]
        # an execution with several samples has the reward of its last one
        execution = record.get("execution") or record["id"].partition(".")[0]
        of_prompt = rewards.setdefault(dataset, {}).setdefault(_prompt_of(record), {})
        if Status(record["status"]).is_finished and record["reward"] is not None:
            of_prompt[execution] = record["reward"]
        else:
            failed[dataset] = failed.get(dataset, 0) + 1
    by_prompt = {
        dataset: {prompt: list(values.values()) for prompt, values in prompts.items()}
        for dataset, prompts in rewards.items()
    }
    return Evaluation(folder.name if step is None else f"{folder.name}@{step}", by_prompt, failed)


def _prompt_of(record: Mapping[str, Any]) -> str:
    """Returns what a prompt has in common in two evaluations: its row's id, and its text."""
    return f"{record['row']}\n{record['prompt']}"


def compare(evaluations: Sequence[Evaluation]) -> Iterator[Comparison]:
    """Yields each evaluation on each dataset that the first one has, with its difference from the first."""
    first = evaluations[0]
    for dataset, before in first.rewards.items():
        for evaluation in evaluations:
            after = evaluation.rewards.get(dataset, {})
            both = [prompt for prompt in before if prompt in after]
            difference = None
            if evaluation is not first:
                difference = paired_difference(
                    [before[prompt] for prompt in both], [after[prompt] for prompt in both]
                )
            estimate = clustered_mean(list(after.values()))
            failed = evaluation.failed.get(dataset, 0)
            only_in_one = len(before) + len(after) - 2 * len(both)
            yield Comparison(dataset, evaluation.name, estimate, failed, difference, only_in_one)


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else value
