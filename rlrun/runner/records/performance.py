"""`perf/` and the summary of a step's updates as `train/`. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlrun.runner.carriers import TrainSequence
from rlrun.runner.clock import StepClock
from rlrun.runner.records.metrics import prefixed
from rlrun.runner.rollouts.rollout import Batch

_TRAINER_PARTS = ("train", "log_prob", "reference", "teacher", "values")
_COUNTS = {"train/tokens", "train/response_tokens", "train/skipped_steps"}


@dataclass(frozen=True, slots=True)
class StepUsage:
    """What one step cost."""

    step_seconds: float
    parts: Mapping[str, float]
    """Seconds the driver waited for rollout, train, log_prob, reference, teacher, values, weight_sync."""
    rank_seconds: float
    """Seconds the trainer's calls took inside its ranks."""
    generated_tokens: int
    trained_tokens: int
    sync_bytes: int
    overlapped: bool = False
    """Engines worked all the while, not only while the driver waited for them."""

    @classmethod
    def of(
        cls,
        clock: StepClock,
        rank_seconds: float,
        batch: Batch,
        sequences: Sequence[TrainSequence],
        sync_bytes: int,
    ) -> "StepUsage":
        """Stops the clock."""
        return cls(
            clock.total(),
            dict(clock.parts),
            rank_seconds,
            batch.generated_tokens,
            sum(len(sequence.tokens) for sequence in sequences),
            sync_bytes,
            batch.overlapped,
        )

    @property
    def overhead(self) -> float:
        """Seconds outside generation, grading and the trainer's own work: what the runner itself costs."""
        return max(self.step_seconds - self.parts.get("rollout", 0.0) - self.rank_seconds, 0.0)

    def metrics(self) -> dict[str, float]:
        """`perf/…`; tokens a second are of the part they are made in."""
        metrics = {f"{name}_time": seconds for name, seconds in self.parts.items()}
        metrics |= {"step_time": self.step_seconds, "overhead_time": self.overhead}
        metrics["wait_ratio"] = 1.0 - min(self._trainer_seconds() / self.step_seconds, 1.0)
        metrics["weight_sync_bytes"] = self.sync_bytes
        if self.generated_tokens:
            seconds = self.step_seconds if self.overlapped else self.parts["rollout"]
            metrics["tokens_per_second/generated"] = self.generated_tokens / seconds
        if self.trained_tokens:
            metrics["tokens_per_second/trained"] = self.trained_tokens / self.parts["train"]
        return prefixed("perf", metrics)

    def _trainer_seconds(self) -> float:
        return sum(self.parts.get(name, 0.0) for name in _TRAINER_PARTS)


def memory_metrics(peaks: Mapping[str, float]) -> dict[str, float]:
    """`perf/peak_memory/<role>`, bytes."""
    return {f"perf/peak_memory/{role}": peak for role, peak in peaks.items()}


def train_metrics(updates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """A step's updates as one line: the mean over its optimizer steps, but sums of what is counted or timed,
    the largest of maxima, and the learning rate of the last.
    """
    merged = {}
    for name in dict.fromkeys(name for update in updates for name in update):
        values = [update[name] for update in updates if name in update]
        if name.endswith("/lr"):
            merged[name] = values[-1]
        elif name.startswith("perf/") or name in _COUNTS:
            merged[name] = sum(values)
        else:
            merged[name] = max(values) if name.endswith("_max") else sum(values) / len(values)
    return merged
