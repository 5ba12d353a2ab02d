"""Checks of the metrics: complete, finite, equal to what the samples give, and of a run that trains."""

import math
from collections.abc import Iterator

from rlrun.runner.audit.audited_run import AuditedRun, Batch, Metrics
from rlrun.runner.audit.group_checks import allowed_staleness
from rlrun.runner.audit.stored_sample import StoredSample, groups_of
from rlrun.runner.audit.violation import NotChecked, Result, Violation
from rlrun.runner.contracts.carriers import DIFFERENCE
from rlrun.runner.records.alerts import find_alerts
from rlrun.runner.records.metrics import rollout_metrics
from rlrun.runner.rollouts.evaluation import evaluation_metrics

FILE = "metrics.jsonl"
RELATIVE = 1e-5
"""Relative difference of a metric that rounding explains."""
KEPT_REMOVED = 16
"""A step stores at most as many samples that it did not train on (rlrun.runner.records.sample_files)."""
UNSCORED = ("rollout/dropped/staleness/", "rollout/dropped/buffer/", "rollout/dropped/generation/")
"""Groups that were dropped and that the metrics of rewards and lengths leave out."""
ENOUGH_TO_TRAIN = 5
"""The steps from which a run must have trained; rewards of fewer may be the same by chance."""
GAP_IN_FLOAT32, GAP_IN_BFLOAT16 = 1e-3, 0.1
"""Nats between the log-probs of engine and trainer for the same weights, as a mean over tokens. In float32
1e-6 is usual; in bfloat16 0.01, and more with a mixture of experts (docs/engines.md)."""


def lines(run: AuditedRun) -> Iterator[Result]:
    """Every line of metrics is whole, and the steps follow each other without a gap."""
    previous = None
    for line in run.lines:
        place = f"{FILE}:{line.number}"
        if line.metrics is None:
            is_last = line.number == len(run.lines)
            writing = line.is_cut and is_last and run.state.get("status") == "running"
            yield None if writing else Violation("it does not hold the metrics of a step", file=place)
            continue
        step = line.metrics["step"]
        expected = step if previous is None else previous + 1
        if step != expected or (previous is None and step > 1 and run.spec.debug.step is None):
            expected = 1 if previous is None else expected
            yield Violation(
                f"it is of step {step}, and step {expected} is missing or there twice", step, file=place
            )
        else:
            yield None
        previous = step
    if previous is not None and (stated := run.state.get("step")) != previous:
        yield Violation(
            f"state.json says step {stated}, and the last line is of step {previous}", file="state.json"
        )


def finite(run: AuditedRun) -> Iterator[Result]:
    """No metric is nan or infinite, and no optimizer step was skipped because of that."""
    for step, metrics in run.steps.items():
        broken = [name for name, value in metrics.items() if value is None]
        skipped = metrics.get("train/skipped_steps") or 0
        message = f"{', '.join(broken[:3])} is not finite" if broken else ""
        message = message or (f"{skipped:g} optimizer steps were skipped: not finite" if skipped else "")
        yield Violation(message, step, file=FILE) if message else None


def recomputed(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """The metrics of rollouts are those of the stored samples."""
    line = run.steps.get(batch.step)
    if line is None or not run.needs.rollout or batch.problems:
        return
    if batch.kind == "dropped":
        run.removed = (batch.step, batch.samples)
        return
    scored = _scored(run, batch, line) if batch.kind == "step" else None
    if batch.kind == "eval":
        computed = _evaluated(run, batch)
    else:
        computed = _bounds(batch, line) if scored is None else _trained(run, batch, scored)
    without_tokens = not all(stored.has_tokens for stored in batch.samples)
    for name, value in computed.items():
        stated = line.get(name)
        if name not in line or stated is None or (without_tokens and name.endswith("/log_probs")):
            continue
        if math.isclose(stated, value, rel_tol=RELATIVE, abs_tol=RELATIVE):
            yield None
        else:
            message = f"{name} is {stated:.6g}, and the stored samples give {value:.6g}"
            yield Violation(message, batch.step, file=f"{FILE}, {batch.file}")
    if batch.kind == "step" and scored is None:
        raise NotChecked("only ranges are compared in steps of which not all scored samples are stored")


def _trained(run: AuditedRun, batch: Batch, scored: list[StoredSample]) -> dict[str, float]:
    version = 0 if run.spec.debug.mode == "rollout" else batch.step - 1
    computed = dict(rollout_metrics(groups_of(scored), version))
    if all(stored.has_tokens for stored in batch.samples):
        masks = [float(stored.sample.loss_mask.sum()) for stored in batch.samples]
        computed["train/response_tokens"] = sum(masks)
    return computed


def _scored(run: AuditedRun, batch: Batch, line: Metrics) -> list[StoredSample] | None:
    """Returns all samples that a step's metrics are computed from; None if not all of them are stored."""
    rollout = run.spec.rollout
    waits = rollout.mode == "async" or rollout.partial
    step, removed = run.removed
    others = list(removed) if step == batch.step else []
    if not run.is_whole(batch) or len(others) >= KEPT_REMOVED or run.spec.debug.mode == "train":
        return None
    dropped = [name for name, value in line.items() if value and name.startswith("rollout/dropped/")]
    if not waits and (dropped or rollout.oversample != rollout.batch_size):
        return None  # groups beyond the batch were scored and are not stored
    if any(not name.startswith(UNSCORED) for name in dropped):
        return None
    lost = ("rollout/dropped_samples/", "rollout/failed/")
    if waits and any(name.startswith(lost) and value for name, value in line.items()):
        return None  # samples of a group that waited for its batch were removed in an earlier step
    return [*batch.samples, *others]


def _bounds(batch: Batch, line: Metrics) -> dict[str, float]:
    """Returns the ends of ranges that stored samples exceed; empty if the stated range holds them."""
    rewards = [stored.sample.reward for stored in batch.samples if stored.sample.is_scored]
    sizes = [stored.tokens for stored in batch.samples if stored.sample.status.is_finished]
    ends: dict[str, float] = {}
    for name, values in (("reward", rewards), ("response_len", sizes)):
        low, high = line.get(f"rollout/{name}/min"), line.get(f"rollout/{name}/max")
        if not values or low is None or high is None:
            continue
        ends[f"rollout/{name}/min"] = min(low, *values)
        ends[f"rollout/{name}/max"] = max(high, *values)
    return ends


def _evaluated(run: AuditedRun, batch: Batch) -> dict[str, float]:
    by_dataset: dict[str, list[StoredSample]] = {}
    for stored in batch.samples:
        by_dataset.setdefault(stored.dataset, []).append(stored)
    computed: dict[str, float] = {}
    for name, samples in by_dataset.items():
        dataset = run.dataset(name)
        indices = sorted({stored.index for stored in samples})
        if dataset is None or indices != list(range(len(indices))):  # every k-th group is stored
            continue
        metrics = evaluation_metrics(groups_of(samples), dataset.pass_threshold)
        # failure types are not stored
        computed |= {f"eval/{name}/{k}": v for k, v in metrics.items() if not k.startswith("failed/")}
    return computed


def gap(run: AuditedRun) -> Iterator[Result]:
    """Engines and trainer compute the same log-probs of the same tokens with the same weights."""
    limit = _gap_limit(run)
    _require_comparison(run)
    for step, metrics in run.steps.items():
        difference = metrics.get(DIFFERENCE)
        if difference is None or metrics.get("rollout/staleness/max"):
            continue
        message = f"{DIFFERENCE} is {difference:.3g}, at most {limit:g} is expected of this precision"
        yield Violation(message, step, file=FILE) if difference > limit else None


def stored_gap(run: AuditedRun, batch: Batch) -> Iterator[Result]:
    """As `gap`, from the log-probs of both that samples store."""
    if batch.kind != "step" or not run.needs.rollout:
        return
    limit = _gap_limit(run)
    for stored in batch.samples:
        sample = stored.sample
        if sample.policy_log_probs is None or any(span.version != batch.step - 1 for span in sample.versions):
            continue
        trained = sample.loss_mask > 0
        if not trained.any():
            continue
        difference = abs(sample.policy_log_probs - sample.log_probs)[trained].mean()
        message = (
            f"engine and trainer differ by {difference:.3g} nats per token, at most {limit:g} is expected"
        )
        yield (batch.violation(stored, message) if difference > limit else None)


def _gap_limit(run: AuditedRun) -> float:
    trainer, engine = run.spec.trainer, run.spec.engine
    if trainer.precision is not None:
        raise NotChecked(f"trainer.precision = {trainer.precision!r} has no known bound")
    return GAP_IN_FLOAT32 if trainer.dtype == engine.dtype == "float32" else GAP_IN_BFLOAT16


def _require_comparison(run: AuditedRun) -> None:
    if not run.trains_on_rollouts:
        raise NotChecked("the run does not train on what its engines generate")
    trainer = run.spec.trainer
    if trainer.old_log_probs == "rollout" and (trainer.optimizer_steps or 1) > 1:
        raise NotChecked("the metric compares with the policy after some of the optimizer steps of a step")


def first_ratio(run: AuditedRun) -> Iterator[Result]:
    """Before a step's first update the ratio to the policy that generated is 1: nothing is clipped."""
    if not run.trains_on_rollouts:
        raise NotChecked("the run does not train on what its engines generate")
    trainer = run.spec.trainer
    if (trainer.optimizer_steps or 1) > 1:
        raise NotChecked(f"metrics are means over {trainer.optimizer_steps} optimizer steps")
    exact = trainer.old_log_probs == "trainer"
    limit = RELATIVE if exact else _gap_limit(run)
    for step, metrics in run.steps.items():
        kl = metrics.get("train/approx_kl")
        if kl is None or (not exact and metrics.get("rollout/staleness/max")):
            continue
        clipped = metrics.get("train/clip_frac") or 0.0
        if abs(kl) > limit:
            yield Violation(f"train/approx_kl is {kl:.3g}, not 0", step, file=FILE)
        elif exact and clipped > 0:
            yield Violation(f"train/clip_frac is {clipped:.3g}, not 0", step, file=FILE)
        else:
            yield None


def trains(run: AuditedRun) -> Iterator[Result]:
    """The policy changes: some step has a gradient and a learning rate."""
    if run.spec.debug.mode in ("rollout", "eval"):
        raise NotChecked(f"debug.mode is {run.spec.debug.mode!r}: nothing is trained")
    for name in ("train/grad_norm", "train/lr"):
        values = {step: value for step, line in run.steps.items() if (value := line.get(name)) is not None}
        if len(values) < ENOUGH_TO_TRAIN:
            raise NotChecked(f"the run has {len(values)} steps of training, {ENOUGH_TO_TRAIN} are needed")
        if any(values.values()):
            yield from (None for _ in values)
        else:
            yield Violation(f"{name} is 0 in all {len(values)} steps", max(values), file=FILE)


def updates_sent(run: AuditedRun) -> Iterator[Result]:
    """Each step that updates the engines has sent them weights."""
    if not run.trains_on_rollouts:
        raise NotChecked("the run has no engines that are updated")
    interval = run.spec.rollout.weight_update_interval
    for step, metrics in run.steps.items():
        size = metrics.get("perf/weight_sync_bytes")
        if size is None or step % interval:
            continue
        yield None if size > 0 else Violation("no weights were sent to the engines", step, file=FILE)


def stated_staleness(run: AuditedRun) -> Iterator[Result]:
    """The staleness that metrics state is no larger than the spec allows."""
    if not run.trains_on_rollouts:
        raise NotChecked("the run does not train on what its engines generate")
    allowed, key = allowed_staleness(run.spec.rollout)
    for step, metrics in run.steps.items():
        stale = metrics.get("rollout/staleness/max")
        if stale is not None:
            message = f"rollout/staleness/max is {stale:g}, and {key} allows {allowed}"
            yield Violation(message, step, file=FILE) if stale > allowed else None


def alerts(run: AuditedRun) -> Iterator[Result]:
    """No alert of docs/alerts.md holds at the end, or now."""
    steps = list(run.steps.values())
    if len([each for each in steps if each.get("perf/step_time")]) < 20:
        raise NotChecked("alerts need 20 steps")
    found = find_alerts(steps, run.spec.rollout.batch_size)
    for alert in found:
        yield Violation(f"{alert.name}: {alert.sentence}", max(run.steps), file=FILE)
    if not found:
        yield from (None for _ in steps)
