"""Computes the metrics of rollouts, whose names are part of rlrun's interface (docs/metrics.md)."""

import math
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rlrun.plugins.failures import Failure
from rlrun.plugins.rewards.extraction import last_boxed
from rlrun.plugins.thresholds import reaches
from rlrun.plugins.types import Group, Sample, Status, last_samples
from rlrun.runner.records.statistics import Estimate, majority, pass_at_k

_REPETITION_WINDOW = 10_000
_REPETITION_RATIO = 10.0
_ZERO_STD = 1e-6


def statistics(values: Sequence[float]) -> dict[str, float]:
    """Returns mean, median, max and min; empty without values."""
    if not len(values):
        return {}
    array = np.asarray(values, dtype=np.float64)
    return {
        "mean": float(array.mean()),
        "median": float(np.median(array)),
        "max": float(array.max()),
        "min": float(array.min()),
    }


def has_repetition(text: str) -> bool:
    """Returns whether the last 10,000 characters of a text compress more than tenfold: it repeats itself."""
    if len(text) <= _REPETITION_WINDOW:
        return False
    tail = text[-_REPETITION_WINDOW:].encode()
    return len(tail) / len(zlib.compress(tail, zlib.Z_BEST_COMPRESSION)) > _REPETITION_RATIO


def pass_rates(rewards: Iterable[Sequence[float]], threshold: float = 1.0) -> dict[str, float]:
    """Returns `pass@k` for k = 1, 2, 4 … up to the largest group, over groups with k samples or more."""
    return {name: sum(rates) / len(rates) for name, rates in pass_estimates(rewards, threshold).items()}


def pass_estimates(rewards: Iterable[Sequence[float]], threshold: float) -> dict[str, list[float]]:
    """Returns the estimates of `pass@k` for each group that has k samples, for the k of `pass_rates`."""
    groups = [
        (len(group), sum(reaches(reward, threshold) for reward in group)) for group in rewards if len(group)
    ]
    rates: dict[str, list[float]] = {}
    k = 1
    while estimates := [pass_at_k(samples, passed, k) for samples, passed in groups if samples >= k]:
        rates[f"pass@{k}"] = estimates
        k *= 2
    return rates


def interval_metrics(name: str, estimate: Estimate | None) -> dict[str, float]:
    """Returns a mean with the ends of its interval, `<name>/low` and `<name>/high`, where it has one."""
    if estimate is None:
        return {}
    if math.isnan(estimate.low):
        return {name: estimate.mean}
    return {name: estimate.mean, f"{name}/low": estimate.low, f"{name}/high": estimate.high}


def majority_rates(groups: Iterable[Sequence[Sample]], threshold: float) -> dict[str, list[float]]:
    """Returns `majority@n` of the largest groups, whose size is n: whether the most frequent answer passes.

    Empty where n is 1 or no sample has an answer (`answer_of`). Samples without an answer have no vote.
    """
    executions = [_scored(group) for group in groups]
    size = max(map(len, executions), default=0)
    answers = [
        [(answer, reaches(sample.reward, threshold)) for sample in group if (answer := answer_of(sample))]
        for group in executions
        if len(group) == size
    ]
    if size < 2 or not any(answers):
        return {}
    rates = [majority(*zip(*group, strict=True)) if group else 0.0 for group in answers]
    return {f"majority@{size}": rates}


def answer_of(sample: Sample) -> str | None:
    """Returns a sample's answer: `answer` or `pred` of the table that its reward returned, or else the last
    `\\boxed{}`. None without one.
    """
    for details in sample.reward_details.values():
        if (answer := details.get("answer", details.get("pred"))) is not None:
            return str(answer)
    boxed = last_boxed(sample.text)
    return None if boxed is None else boxed.strip()


def execution_rewards(samples: Sequence[Sample]) -> list[float]:
    """Returns the reward of each scored execution; if it has several samples, the reward of the last one."""
    return [sample.reward for sample in _scored(samples)]


def _scored(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in last_samples(samples) if sample.is_scored]


def is_due(step: int, interval: int | None) -> bool:
    """Returns whether an action with this interval in steps is due after step `step` (counted from 0)."""
    return interval is not None and (step + 1) % interval == 0


def rollout_metrics(groups: Sequence[Group], version: int) -> dict[str, float]:
    """Returns the metrics under `rollout/` of the groups that a step trains on.

    `version` is the current version of the weights, from which staleness is counted.
    """
    finished = [[sample for sample in group.samples if sample.status.is_finished] for group in groups]
    scored = [execution_rewards(samples) for samples in finished]
    samples = [sample for group in finished for sample in group]
    executions = last_samples(samples)
    metrics = _reward_metrics(executions) | sample_metrics(samples) | pass_rates(scored)
    metrics["zero_std/count"] = sum(1 for rewards in scored if rewards and np.std(rewards) < _ZERO_STD)
    staleness = [version - sample.oldest_version for sample in samples if sample.versions]
    metrics |= _info_metrics(executions)
    greedy = [own[0].greedy_reward for own in finished if own and own[0].greedy_reward is not None]
    if greedy:
        metrics["greedy_reward"] = float(np.mean(greedy))
    if distilled := [sample.distilled for sample in samples if sample.distilled is not None]:
        metrics["distilled_frac"] = _share(distilled)
    if compared := [
        sample.compared[sample.loss_mask > 0] for sample in samples if sample.compared is not None
    ]:
        metrics["compared_frac"] = _share(np.concatenate(compared))
    metrics |= {f"staleness/{k}": v for k, v in statistics(staleness).items() if k in ("mean", "max")}
    return add_prefix("rollout", metrics)


def sample_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Returns lengths, truncation, repetition and the engine's mean log-prob, for rollouts and evaluation."""
    if not samples:
        return {}
    lengths = [length for sample in samples if (length := _response_length(sample)) is not None]
    metrics = {f"response_len/{k}": v for k, v in statistics(lengths).items()}
    metrics["truncated_ratio"] = _share(sample.status is Status.TRUNCATED for sample in samples)
    metrics["repetition_frac"] = _share(has_repetition(sample.text) for sample in samples)
    if generated := sum(int(sample.made.sum()) for sample in samples):
        metrics["log_probs"] = (
            float(sum(sample.log_probs.sum(dtype=np.float64) for sample in samples)) / generated
        )
    return metrics


def _response_length(sample: Sample) -> int | None:
    """Returns the tokens of a response; of a text without tokens what its server counted, None if nothing."""
    if len(sample.tokens) or not sample.text:
        return len(sample.tokens)
    return sample.info.get("completion_tokens")


def failure_counts(samples: Iterable[Sample]) -> Counter[Failure]:
    """Returns how many samples failed, by type."""
    failed = (sample for sample in samples if sample.status is Status.FAILED)
    return Counter(sample.failure_type or Failure.ERROR for sample in failed)


def failure_metrics(failures: Mapping[Failure, int]) -> dict[str, float]:
    """Returns `failed/<type>` for each type of failure that happened."""
    return {f"failed/{failure}": float(count) for failure, count in sorted(failures.items())}


def add_prefix(prefix: str, metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns the same metrics with `prefix/` before their names."""
    return {f"{prefix}/{name}": value for name, value in metrics.items()}


def _reward_metrics(executions: Sequence[Sample]) -> dict[str, float]:
    rewards = np.array(execution_rewards(executions), dtype=np.float64)
    if not len(rewards):
        return {}
    metrics = {"reward/mean": float(rewards.mean()), "reward/std": float(rewards.std())}
    metrics |= {"reward/min": float(rewards.min()), "reward/max": float(rewards.max())}
    for name in sorted({name for sample in executions for name in sample.rewards}):
        values = [sample.rewards[name] for sample in executions if name in sample.rewards]
        metrics[f"rewards/{name}"] = float(np.mean(values))
    return metrics


def _info_metrics(executions: Sequence[Sample]) -> dict[str, float]:
    """Returns the mean of each number that rollouts put into `info`, over the executions that have it.

    Whole numbers beyond a float, which an agent may print, are left out.
    """
    values_by_name: dict[str, list[float]] = {}
    for sample in executions:
        for name, value in sample.info.items():
            if isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max):
                values_by_name.setdefault(name, []).append(float(value))
    return {f"info/{name}": float(np.mean(values)) for name, values in sorted(values_by_name.items())}


def _share(flags: Iterable[bool]) -> float:
    values = list(flags)
    return sum(values) / len(values)
