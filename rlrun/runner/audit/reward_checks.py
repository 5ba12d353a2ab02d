"""Checks of rewards, filters and advantages."""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rlrun.plugins.registry import PluginError, build
from rlrun.plugins.types import Drop, Group
from rlrun.runner.audit.audited_run import AuditedRun, Batch
from rlrun.runner.audit.stored_sample import StoredSample, groups_of
from rlrun.runner.audit.violation import NotChecked, Result, Violation
from rlrun.runner.batches.sequences import weighted_advantages
from rlrun.runner.scoring.scorer import indices_of, unique_names, with_own_rewards
from rlrun.specs.sections.scoring import RewardSpec

LAST = 5
"""The steps at the end of a run that must have some difference between rewards."""
ENOUGH = 10
"""The steps from which a run is long enough to say that its rewards have no difference any more."""
SAME = 1e-6
"""Rewards that differ by no more are the same."""
TOLERANCE = 1e-5
"""Of advantages, which are stored in float32."""


def reward_sums(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """The reward of a sample is the weighted sum of its rewards, and a number where it is trained on."""
    if not run.needs.rollout or not run.needs.rewards:
        raise NotChecked("the algorithm uses no rewards")
    for stored in batch.samples:
        sample = stored.sample
        weights = _weights(run, stored)
        if not sample.status.is_finished or not weights:
            continue
        message = ""
        if math.isnan(sample.reward):
            message = "it has no reward and is trained on" if batch.kind == "step" else ""
        elif sample.failure is None and set(sample.rewards) != set(weights):
            message = f"it has the rewards {', '.join(sample.rewards) or 'none'}, not {', '.join(weights)}"
        elif sample.failure is None:
            total = sum(weights[name] * reward for name, reward in sample.rewards.items())
            if not math.isclose(total, sample.reward, rel_tol=SAME, abs_tol=SAME):
                message = (
                    f"its reward is {sample.reward:g}, and {_sum_of(weights, sample.rewards)} is {total:g}"
                )
        yield batch.violation(stored, message) if message else None


def reward_values(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """Rewards that only read the response and the label give the stored values again."""
    if not run.needs.rollout or not run.needs.rewards:
        raise NotChecked("the algorithm uses no rewards")
    for dataset in sorted({stored.dataset for stored in batch.samples}):
        chosen = [
            stored
            for stored in batch.samples
            if stored.dataset == dataset
            and stored.sample.status.is_finished
            and stored.sample.failure is None
        ]
        if not chosen:
            continue
        again = run.rescorer.score([stored.sample for stored in chosen], _rewards(run, chosen[0]))
        for stored, scored in zip(chosen, again, strict=True):
            own = stored.sample.rewards
            wrong = [name for name, value in scored.rewards.items() if not _agrees(own.get(name), value)]
            if wrong:
                before, now = own.get(wrong[0]), scored.rewards[wrong[0]]
                message = f"its reward {wrong[0]} is {before}, and scoring it again gives {now:g}"
                yield batch.violation(stored, message)
            else:
                yield None


def _agrees(stored: float | None, value: float) -> bool:
    return stored is not None and math.isclose(stored, value, rel_tol=SAME, abs_tol=SAME)


def _rewards(run: AuditedRun, stored: StoredSample) -> tuple[RewardSpec, ...]:
    dataset = run.dataset(stored.dataset)
    return run.spec.rewards if dataset is None else dataset.rewards


def _weights(run: AuditedRun, stored: StoredSample) -> dict[str, float]:
    """Returns the weight of each reward of a sample, by the name that the scorer gives it."""
    specs = with_own_rewards(run.spec.rewards, [dataset.rewards for dataset in run.spec.eval.datasets])
    names = unique_names(specs)
    return {names[number]: specs[number].weight for number in indices_of(_rewards(run, stored), specs)}


def _sum_of(weights: Mapping[str, float], rewards: Mapping[str, float]) -> str:
    return " + ".join(f"{weights[name]:g} · {name} {reward:g}" for name, reward in rewards.items())


def rewards_differ(run: AuditedRun) -> Iterator[Result]:
    """Rewards differ between samples; where all are the same, group-relative advantages are 0."""
    if not run.needs.rollout or not run.needs.rewards:
        raise NotChecked("the algorithm uses no rewards")
    spreads = {
        step: spread
        for step, metrics in run.steps.items()
        if (spread := metrics.get("rollout/reward/std")) is not None
    }
    last = list(spreads)[-LAST:]
    if len(spreads) < LAST:
        raise NotChecked(f"the run has {len(spreads)} steps with rewards, {LAST} are needed")
    mean = run.steps[last[-1]].get("rollout/reward/mean")
    if all(spread < SAME for spread in spreads.values()):
        yield Violation(
            f"every reward of all {len(spreads)} steps is {mean:g}", last[-1], file="metrics.jsonl"
        )
    elif len(spreads) >= ENOUGH and all(spreads[step] < SAME for step in last):
        message = f"all rewards of the last {LAST} steps are {mean:g}: they teach nothing"
        yield Violation(message, last[-1], file="metrics.jsonl")
    else:
        yield from (None for _ in spreads)


def filters(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """No group that is trained on is one that a filter of the spec drops."""
    if not run.spec.filters:
        raise NotChecked("the spec has no filters")
    if batch.kind != "step":
        return
    built = []
    for name, section in zip(unique_names(run.spec.filters), run.spec.filters, strict=True):
        try:
            built.append((name, build("filters", section.type, section.params)))
        except (PluginError, ValueError) as error:
            raise NotChecked(str(error)) from None
    for group in groups_of(batch.samples):
        for name, filter in built:
            if hasattr(filter, "state") or getattr(filter, "keep_when_short", False):
                continue
            verdict = filter(Group(group.prompt, list(group.samples)))
            ids = tuple(sample.id for sample in group.samples)
            if isinstance(verdict, Drop) and verdict.samples is None:
                yield Violation(
                    f"filter {name} drops the group ({verdict.reason})", batch.step, ids, batch.file
                )
            else:
                yield None
    if any(hasattr(filter, "state") for _, filter in built):
        raise NotChecked("filters that remember earlier groups")


def advantages(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """The advantages are those that the algorithm computes from the rewards."""
    if batch.kind != "step":
        return
    needs = run.needs
    missing = [name for name in ("reference", "teacher", "critic") if getattr(needs, name)]
    missing += ["policy's log-probs"] if needs.policy_log_probs else []
    missing += [name.replace("_", "'s ", 1).replace("_", " ") for name in needs.policy_statistics]
    if missing:
        raise NotChecked(f"advantages depend on the {missing[0]}, which no sample stores")
    if not needs.rollout:
        raise NotChecked("demonstrations have no advantages to compute")
    if not run.is_whole(batch):
        raise NotChecked("not all samples of the steps are stored (debug.save_rollouts stores them)")
    groups = groups_of(batch.samples)
    algorithm: Any = build("algorithms", run.spec.algorithm.type, run.spec.algorithm.params)
    own = {stored.id: stored for stored in batch.samples}
    computed = weighted_advantages(groups, algorithm)
    samples = [sample for group in groups for sample in group.samples]
    for sample, expected in zip(samples, computed, strict=True):
        stored = own[sample.id]
        if sample.advantages is None or not stored.has_tokens:
            continue
        trained = sample.loss_mask > 0
        difference = np.abs(sample.advantages - expected)[trained]
        if len(difference) and not difference.max() <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
            at = int(np.flatnonzero(trained)[difference.argmax()])
            message = (
                f"the advantage of token {at} is {sample.advantages[at]:.6g}, and {run.spec.algorithm.type} "
                f"computes {expected[at]:.6g} from the rewards of its group"
            )
            yield batch.violation(stored, message)
        else:
            yield None
