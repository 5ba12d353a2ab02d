"""What a run's files say about its speed and its learning, for commands and the page.

metrics of recent steps ──▶ seconds by part ──▶ the longest part, or what prolongs it ──▶ one sentence
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rlrun.runner.contracts.execution_limit import FULL_CACHE, LONG_QUEUE
from rlrun.runner.records.alerts import Alert, Losses, find_alerts, find_losses
from rlrun.runner.records.lock import read_lock
from rlrun.runner.records.metrics_file import read_metrics
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.sections.job import Spec

Metrics = Mapping[str, float | None]
Part = Literal[
    "generation", "rewards", "training", "log_probs", "reference", "values", "weights", "evaluation"
]
Cause = Part | Literal["cache", "cache_wait", "dropped", "failed"]
STEPS = 20
"""How many steps back the sentence looks; the first step of a run, which compiles, only counts alone."""
MAX_DROPPED = 0.5
"""The share of generated groups from which the filters, or failures, are why generation is slow."""
_TIMES: Mapping[Part, tuple[str, ...]] = {
    "training": ("train_time",),
    "log_probs": ("log_prob_time",),
    "reference": ("reference_time", "teacher_time"),
    "values": ("values_time",),
    "weights": ("weight_sync_time", "sleep_time"),
    "evaluation": ("eval_time",),
    "rewards": ("reward_wait_time",),
}
"""The metrics `perf/…` of each part; generation is the rest of `perf/rollout_time`."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limits the speed of a run, and its cure."""

    cause: Cause
    share: float
    """The share of a step's time, evaluations included, that the part takes."""
    sentence: str
    """Example: `The trainer waits 61 % of a step for generation: raise engine.count (1), or …`"""


_FINDINGS: Mapping[Cause, str] = {
    "rewards": "{subject} {share} of a step for rewards alone",
    "training": "Training takes {share} of a step",
    "log_probs": "The log-probs of the old policy take {share} of a step",
    "reference": "The log-probs of the reference and the teacher take {share} of a step",
    "values": "The critic's values take {share} of a step",
    "weights": "Weights on their way to the engines take {share} of a step",
    "evaluation": "Evaluation takes {share} of the time",
    "generation": "{subject} {share} of a step for generation",
    "cache": "{subject} {share} of a step for generation, in which engines run out of KV cache and compute "
    "samples again",
    "cache_wait": "{subject} {share} of a step for generation, in which samples wait for room in the "
    "engines' KV cache",
    "dropped": "{subject} {share} of a step for generation, and filters drop most groups",
    "failed": "{subject} {share} of a step for generation, and most groups fail",
}
ENDS = STEPS + 1
"""As many of the first steps, and as many of the last, are all that a diagnosis reads."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What limits the speed of a run, what it learns wrongly, and which executions it lost."""

    bottleneck: Bottleneck | None = None
    alerts: Sequence[Alert] = ()
    losses: Losses | None = None


def read_diagnosis(folder: RunFolder) -> Diagnosis:
    """Returns the diagnosis of a run; an empty one if it has no steps or its files cannot be read."""
    spec = read_spec(folder)
    return Diagnosis() if spec is None else diagnose(read_metrics(folder.metrics), spec)


def diagnose(steps: Sequence[Metrics], spec: Spec) -> Diagnosis:
    """Returns the diagnosis of a run, given at least the first and last steps that `ENDS` counts."""
    alerts = find_alerts(steps, spec.rollout.batch_size)
    return Diagnosis(find_bottleneck(steps, spec), alerts, find_losses(steps))


def read_spec(folder: RunFolder) -> Spec | None:
    """Returns a run's resolved spec; None if this version of rlrun cannot read it."""
    try:
        locked: Mapping[str, Any] = read_lock(folder.lock)
        return Spec.model_validate(locked["spec"])
    except (OSError, ValueError):
        return None


def find_bottleneck(steps: Sequence[Metrics], spec: Spec) -> Bottleneck | None:
    """Returns the bottleneck of the newest `STEPS` steps; None where no step has times.

    `steps`: lines of metrics.jsonl. `spec`: the resolved spec, as spec.lock.json has it.
    """
    timed = [metrics for metrics in steps if metrics.get("perf/step_time")]
    recent = (timed[1:] or timed)[-STEPS:]
    if not recent:
        return None
    seconds = _seconds_by_part(recent)
    part = max(seconds, key=lambda name: seconds[name])
    total = _total(recent, "perf/step_time") + seconds["evaluation"]
    share = min(1.0, seconds[part] / total)
    cause: Cause = _cause_of_generation(recent, spec) if part == "generation" else part
    trains = any("train_time" in name for metrics in recent for name in metrics)
    return Bottleneck(cause, share, f"{_finding(cause, share, trains=trains)}: {_cure(cause, spec)}")


def _seconds_by_part(steps: Sequence[Metrics]) -> dict[Part, float]:
    seconds: dict[Part, float] = {
        part: sum(_total(steps, f"perf/{name}") for name in names) for part, names in _TIMES.items()
    }
    seconds["generation"] = max(0.0, _total(steps, "perf/rollout_time") - seconds["rewards"])
    return seconds


def _total(steps: Sequence[Metrics], name: str) -> float:
    return sum(metrics.get(name) or 0.0 for metrics in steps)


def _cause_of_generation(steps: Sequence[Metrics], spec: Spec) -> Cause:
    """Returns what prolongs generation: groups that are not used, a full cache, or neither."""
    names = {name for metrics in steps for name in metrics if name.startswith("rollout/dropped/")}
    failed = sum(_total(steps, name) for name in names if name.startswith("rollout/dropped/generation/"))
    dropped = sum(_total(steps, name) for name in names)
    kept = len(steps) * spec.rollout.batch_size
    if dropped > MAX_DROPPED * (dropped + kept):
        return "failed" if failed > dropped / 2 else "dropped"
    if _total(steps, "rollout/retractions") / len(steps) > FULL_CACHE:
        return "cache"
    return (
        "cache_wait" if _total(steps, "rollout/waiting_for_cache") / len(steps) > LONG_QUEUE else "generation"
    )


def _finding(cause: Cause, share: float, *, trains: bool) -> str:
    subject = "The trainer waits" if trains else "The run waits"
    return _FINDINGS[cause].format(subject=subject, share=f"{share:.0%}".replace("%", " %"))


def _cure(cause: Cause, spec: Spec) -> str:
    rollout, trainer, engine = spec.rollout, spec.trainer, spec.engine
    match cause:
        case "generation":
            return _cure_of_generation(spec)
        case "cache":
            return f"raise {_cache_size(spec)}, or lower engine.max_running ({engine.max_running})"
        case "cache_wait":
            return f"raise {_cache_size(spec)}, or engine.count ({engine.count or 'automatic'})"
        case "dropped":
            return (
                "choose prompts that the policy sometimes solves (the filter online_difficulty does), or "
                f"raise rollout.oversample ({rollout.oversample})"
            )
        case "failed":
            return "the log names the last error (rlrun logs), and metrics count them (rollout/dropped)"
        case "rewards":
            scoring = spec.scoring
            return (
                f"raise scoring.workers ({scoring.workers}), or scoring.concurrency "
                f"({scoring.concurrency}) where rewards wait for a server"
            )
        case "training":
            tokens = trainer.max_tokens_per_rank
            return (
                f"add ranks (trainer.parallel), raise trainer.max_tokens_per_rank ({tokens}), or see with "
                "debug.profile what takes long"
            )
        case "log_probs":
            return 'use the log-probs of the engines instead (trainer.old_log_probs = "rollout")'
        case "reference":
            return "serve the model by engines of its own (reference.engine, teacher.engine)"
        case "values":
            return f"raise trainer.max_tokens_per_rank ({trainer.max_tokens_per_rank})"
        case "weights":
            return _cure_of_weights(spec)
        case "evaluation":
            rarer = "" if spec.eval.interval is None else f"raise eval.interval ({spec.eval.interval}), or "
            return f"{rarer}evaluate fewer rows"


def _cache_size(spec: Spec) -> str:
    """Returns the key that limits the KV cache."""
    tokens = spec.engine.max_cache_tokens
    if spec.engine.type == "native" or tokens is not None:
        return "engine.max_cache_tokens" + ("" if tokens is None else f" ({tokens})")
    return "engine.sglang.mem_fraction_static"


def _cure_of_generation(spec: Spec) -> str:
    rollout, colocated = spec.rollout, spec.cluster.placement == "colocated"
    count = f"engine.count ({spec.engine.count or 'automatic'})"
    if rollout.mode == "async":
        return f"raise {count}, or rollout.max_staleness ({rollout.max_staleness})"
    if not colocated:
        return f'let engines generate while the trainer works (rollout.mode = "async"), or raise {count}'
    return (
        "let no step wait for its longest samples (rollout.partial = true with rollout.oversample above "
        f"{rollout.batch_size}), or give engines devices of their own (cluster.placement = "
        '"disaggregated" with rollout.mode = "async")'
    )


def _cure_of_weights(spec: Spec) -> str:
    larger = f"raise rollout.batch_size ({spec.rollout.batch_size}), so that updates are rarer"
    if spec.trainer.lora is None:
        larger += ", or train adapters (trainer.lora)"
    if spec.engine.type == "sglang" and spec.engine.weight_sync not in ("tensor", None):
        return f'set engine.weight_sync = "tensor" where hosts allow it, or {larger}'
    return larger
