"""Computes the metrics `perf/…` of a step, from sets of times and the GPUs of the job. Pure functions."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

from rlrun.models.architecture import Architecture
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.contracts.step_clock import ENGINE_WORK, Span, StepClock
from rlrun.runner.planning.hardware import Device
from rlrun.runner.planning.model_size import token_operations
from rlrun.runner.planning.plan import Plan
from rlrun.runner.records.metrics import add_prefix
from rlrun.runner.rollouts.rollout_source import Batch
from rlrun.specs.sections.trainer import TrainerSpec

_TRAINER_PARTS = ("train", "log_prob", "reference", "teacher", "values")
Times = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class ComputeBudget:
    """How many GPUs trainer and engines have, and how many operations a token costs.

    Example: `ComputeBudget(trainer=8, engines=8, flops=989e12, token_operations=45_600_000_000,
    attention=100_352)`
    """

    trainer: int
    engines: int
    """GPUs of the policy's engines. GPUs that engines share with the trainer count for both."""
    flops: float | None
    """Dense bfloat16 operations per second of one GPU, as its maker states; None for an unknown GPU."""
    token_operations: int
    """Operations of matrix products per token in a forward and backward pass: six for each parameter that a
    token is multiplied by, and four if it is frozen."""
    attention: int
    """layers × heads × head_dim: the additional cost of a token for each token before it."""

    def training_flops(self, lengths: Iterable[int]) -> float:
        """Returns the operations of forward and backward passes over sequences of these lengths, with causal
        attention. Recomputation (`activation_checkpointing`) is not counted.
        """
        return float(
            sum(length * (self.token_operations + 6 * self.attention * length) for length in lengths)
        )

    def utilisation(self, training_flops: float, seconds: float) -> float | None:
        """Returns the model FLOPs utilisation (https://arxiv.org/abs/2204.02311), the share of the operations
        that the trainer's GPUs could have done in this time; None for an unknown GPU.
        """
        return training_flops / (seconds * self.trainer * self.flops) if self.flops else None


@dataclass(frozen=True, slots=True)
class StepUsage:
    """The time, tokens and bytes of one step."""

    step_seconds: float
    parts: Mapping[str, float]
    """Seconds that the driver waited for rollout, sleep, train, log_prob, reference, teacher, values and
    weight_sync."""
    rank_seconds: float
    """Seconds that the slowest rank worked in passes and updates."""
    generated_tokens: int
    trained_tokens: int
    sync_bytes: int
    overlapped: bool = False
    """Engines generated during the whole step, not only while the driver waited for them."""
    gpus: ComputeBudget | None = None
    """What speeds are measured against; None on CPUs."""
    training_flops: float = 0.0
    """Operations of the policy's updates."""
    started: float = 0.0
    """When the step began, in seconds of `time.perf_counter`."""
    spans: Sequence[Span] = ()
    """What the driver waited for, and when."""
    ranks_by_prompt: Callable[[], Mapping[int, Collection[int]]] = dict
    """Returns the ranks that trained on the group of each prompt, by the index of the prompt."""

    @classmethod
    def of(  # noqa: PLR0917
        cls,
        clock: StepClock,
        rank_seconds: float,
        batch: Batch,
        sequences: Sequence[TrainSequence],
        sync_bytes: int,
        gpus: ComputeBudget | None = None,
    ) -> "StepUsage":
        """Stops the clock, and returns the usage of the step that it measured."""
        lengths = [len(sequence.tokens) for sequence in sequences]
        return cls(
            clock.total(),
            dict(clock.parts),
            rank_seconds,
            batch.generated_tokens,
            sum(lengths),
            sync_bytes,
            batch.overlapped,
            gpus,
            gpus.training_flops(lengths) if gpus else 0.0,
            clock.started,
            clock.spans,
        )

    @property
    def overhead(self) -> float:
        """Seconds that the runner itself costs: outside the rollout and the ranks' work."""
        return max(self.step_seconds - self.parts.get("rollout", 0.0) - self.rank_seconds, 0.0)

    def metrics(self) -> dict[str, float]:
        """Returns `perf/…`; tokens per second refer to the part of the step that processes them."""
        metrics = {f"{name}_time": seconds for name, seconds in self.parts.items()}
        metrics |= {"step_time": self.step_seconds, "overhead_time": self.overhead}
        metrics["wait_ratio"] = 1.0 - min(self._trainer_seconds() / self.step_seconds, 1.0)
        metrics["weight_sync_bytes"] = self.sync_bytes
        speeds = {}
        if self.generated_tokens:
            seconds = self.step_seconds if self.overlapped else self.parts["rollout"]
            speeds["generated"] = self.generated_tokens / seconds
        if self.trained_tokens:
            speeds["trained"] = self.trained_tokens / self.parts["train"]
        metrics |= {f"tokens_per_second/{name}": speed for name, speed in speeds.items()}
        return add_prefix("perf", metrics | self._of_gpus(speeds))

    def _of_gpus(self, speeds: Mapping[str, float]) -> dict[str, float]:
        """Returns speeds per GPU, and the utilisation of the trainer's GPUs by its updates."""
        if self.gpus is None:
            return {}
        counts = {"generated": self.gpus.engines, "trained": self.gpus.trainer}
        metrics = {
            f"tokens_per_second/{name}_per_gpu": speed / counts[name]
            for name, speed in speeds.items()
            if counts[name]
        }
        if self.training_flops:
            used = self.gpus.utilisation(self.training_flops, self.parts["train"])
            metrics |= {} if used is None else {"mfu": used}
        return metrics

    def _trainer_seconds(self) -> float:
        return sum(self.parts.get(name, 0.0) for name in _TRAINER_PARTS)


def reward_wait(spans: Sequence[Span]) -> dict[str, float]:
    """Returns `perf/reward_wait_time`: seconds of the rollout in which rewards worked and no engine did."""
    waiting = [(span.start, span.end) for span in spans if span[:2] == ("driver", "rollout")]
    scoring = [(span.start, span.end) for span in spans if span.lane == "rewards"]
    generating = [(span.start, span.end) for span in spans if span.name == ENGINE_WORK]
    seconds = overlap(overlap(waiting, scoring), gaps(generating))
    total = sum(end - start for start, end in seconds)
    return {"perf/reward_wait_time": total} if scoring else {}


def memory_metrics(peaks: Mapping[str, float]) -> dict[str, float]:
    """Returns `perf/peak_memory/<role>` in bytes."""
    return {f"perf/peak_memory/{role}": peak for role, peak in peaks.items()}


def merge(times: Iterable[tuple[float, float]]) -> Times:
    """Returns the same times in order, where none overlap."""
    merged: Times = []
    for start, end in sorted(times):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def overlap(first: Iterable[tuple[float, float]], second: Iterable[tuple[float, float]]) -> Times:
    """Returns the times that are in both."""
    others = merge(second)
    both = ((max(a, c), min(b, d)) for a, b in merge(first) for c, d in others)
    return [(start, end) for start, end in both if start < end]


def gaps(times: Iterable[tuple[float, float]]) -> Times:
    """Returns all other times, from minus to plus infinity."""
    bounds = [(-inf, -inf), *merge(times), (inf, inf)]
    return [(end, start) for (_, end), (start, _) in pairwise(bounds)]


def gpus_of_job(
    plan: Plan, model: Architecture, trainer: TrainerSpec, gpu: Device | None
) -> ComputeBudget | None:
    """Returns the budget of a plan whose GPUs are all like `gpu`; None for a job on CPUs."""
    if not any(rank.location.gpu is not None for rank in plan.ranks):
        return None
    return ComputeBudget(
        trainer=len(plan.ranks),
        engines=sum(len(engine.locations) for engine in plan.engines),
        flops=gpu.flops if gpu else None,
        token_operations=token_operations(model, trainer),
        attention=model.attention_layers * model.heads * model.head_dim,
    )
