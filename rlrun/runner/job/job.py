"""The parts of a run that the loop uses, and how far the run is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypedDict

from rlrun.plugins.images import PlacedImage
from rlrun.plugins.protocols import Algorithm
from rlrun.runner.batches.model_handle import ModelHandle
from rlrun.runner.batches.passes import TeacherPrompts, TeacherTokens
from rlrun.runner.checkpoints.saving import Checkpoints
from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.algorithm_state import state_of
from rlrun.runner.contracts.carriers import ImagePatches
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.hooks import Hooks
from rlrun.runner.contracts.interfaces import FrozenModel, WeightReceiver
from rlrun.runner.contracts.step_clock import GroupMoment, Span
from rlrun.runner.job.debugging.step_profiles import StepProfiles
from rlrun.runner.job.device_sharing import DeviceSharing
from rlrun.runner.job.performance import ComputeBudget, StepUsage
from rlrun.runner.job.stopping import StopRequest
from rlrun.runner.job.sync_probe import SyncProbe
from rlrun.runner.records.journal import Journal
from rlrun.runner.records.metrics import is_due
from rlrun.runner.rollouts.evaluation import Evaluator
from rlrun.runner.rollouts.rollout_source import Batch


def _no_patches(images: Sequence[PlacedImage]) -> Mapping[str, ImagePatches]:
    """Returns nothing, for models that read no images."""
    return {}


class BatchSource(Protocol):
    """Stages 1 to 4 of a step: yields groups to train on (`rlrun.runner.rollouts`)."""

    async def next(self, version: int) -> Batch:
        """Returns the next batch, while the engines serve weights `version`."""

    def state(self) -> dict[str, Any]:
        """Returns the position in the data after the batches so far, as JSON values."""

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Returns a function that computes the present state when it is called, so that a step without a
        checkpoint does not pay for it."""

    async def restore(self, state: dict[str, Any]) -> None:
        """Continues from a saved state."""

    async def close(self) -> None:
        """Stops reading and generating ahead."""


class NoBatches:
    """The source of a run without steps."""

    async def next(self, version: int) -> Batch:
        """Must not be called."""
        raise AssertionError("a run that only evaluates has no steps")

    def state(self) -> dict[str, Any]:
        """Returns nothing: there is no position in the data."""
        return {}

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Returns a function that returns nothing."""
        return dict

    async def restore(self, state: dict[str, Any]) -> None:
        """Changes nothing."""

    async def close(self) -> None:
        """Stops nothing."""


class ModelExports(Protocol):
    """Writes the policy as Hugging Face folders while a run trains (rlrun.runner.job.model_exports)."""

    def is_due(self, step: int) -> bool:
        """Returns whether a model is written after a step."""

    async def write(self, step: int) -> None:
        """Writes the model of a step."""


class ProcessRecords:
    """What the processes of a job did (rlrun.runner.job.assembly.RunningJob); here, of a loop without any.

    Each `take_…` returns what happened since its last call.
    """

    def peak_memory(self) -> Mapping[str, float]:
        """Returns bytes by role."""
        return {}

    def take_counts(self) -> dict[str, float]:
        """Returns metrics that count what engines did."""
        return {}

    def take_spans(self) -> list[Span]:
        """Returns when ranks, engines and rewards worked."""
        return []

    def take_moments(self) -> list[GroupMoment]:
        """Returns when engines and rewards ended their work for each group."""
        return []


class BestEvaluation(TypedDict):
    """The evaluation with the largest value of a metric so far, which checkpoints contain as JSON.

    Example: `{"metric": "eval/held-out/reward", "step": 20, "value": 0.97}`
    """

    metric: str
    step: int
    value: float


@dataclass(slots=True)
class Progress:
    """How far the run is; every checkpoint contains it."""

    step: int = 0
    """Finished steps."""
    version: int = 0
    """Version of the weights that the engines serve; every step of training adds one."""
    seconds: float = 0.0
    """Time spent in steps, over all launches of this run."""
    generated_tokens: int = 0
    trained_tokens: int = 0
    unevaluated: dict[str, float] | None = None
    """Metrics of the last step while its evaluation is still to be done; None otherwise."""
    best: BestEvaluation | None = None
    """The best evaluation of a step until now (`checkpoint.keep_best`); None without one."""
    source_state: Callable[[], dict[str, Any]] = field(default=dict, compare=False)
    """Returns the source's state after the last finished step."""
    algorithm_state: dict[str, Any] = field(default_factory=dict, compare=False)
    """The algorithm's state after the last finished step; empty without one."""

    def add_step(self, usage: StepUsage, job: "RolloutJob") -> None:
        """Counts one more finished step."""
        self.step += 1
        self.remember(job)
        self.seconds += usage.step_seconds
        self.generated_tokens += usage.generated_tokens
        self.trained_tokens += usage.trained_tokens

    def remember(self, job: "RolloutJob") -> None:
        """Keeps the states of the job's source and algorithm as they are now."""
        self.source_state = job.source.snapshot()
        self.algorithm_state = job.algorithm_state()

    def remember_best(self, metric: str | None, metrics: Mapping[str, float]) -> bool:
        """Remembers the evaluation of the last step if it is the best one so far; returns whether it is.

        An evaluation whose samples all failed has no such metric. Raises JobError for an unknown metric.
        """
        if metric is None or self.step == 0:
            return False
        value = metrics.get(metric)
        if value is None:
            _check_metric(metric, metrics)
            return False
        best = self.best if self.best is not None and self.best["metric"] == metric else None
        if best is not None and value <= best["value"]:
            return False
        self.best = BestEvaluation(metric=metric, step=self.step, value=value)
        return True

    def driver_state(self) -> dict[str, Any]:
        """Returns the driver's part of a checkpoint, as JSON values."""
        states = ("source_state", "algorithm_state")
        counts = {item.name: getattr(self, item.name) for item in fields(self) if item.name not in states}
        return {"progress": counts, "data": self.source_state(), "algorithm": self.algorithm_state}


def _check_metric(metric: str, metrics: Mapping[str, float]) -> None:
    """Raises JobError if evaluations of the metric's dataset have other metrics, but not this one."""
    prefix = "/".join(metric.split("/")[:2])
    if f"{prefix}/reward" in metrics:
        known = ", ".join(name for name in metrics if name.startswith(f"{prefix}/"))
        raise JobError(f"checkpoint.keep_best: evaluations have no metric {metric!r}; they have {known}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutJob:
    """A run that only generates: its engines serve the model as it was loaded."""

    steps: int
    source: BatchSource
    journal: Journal
    checkpoints: Checkpoints
    trainer: TrainerGroup | None = None
    profiles: StepProfiles = field(default_factory=StepProfiles)
    """The steps that are recorded in detail."""
    evaluation: Evaluator | None = None
    eval_before_training: bool = True
    checkpoint_interval: int | None = None
    best_metric: str | None = None
    """The metric whose best evaluation's checkpoint is kept; None: none is."""
    stop: StopRequest = field(default_factory=StopRequest)
    """Whether the run was asked to stop."""
    devices: DeviceSharing = field(default_factory=DeviceSharing)
    """Moves device memory between trainer and engines, where they share devices."""
    processes: ProcessRecords = field(default_factory=ProcessRecords)
    """What ranks, engines and rewards did."""
    models: ModelExports | None = None
    """Writes models while the run trains; None: none are written."""

    def evaluates_after(self, step: int) -> bool:
        """Whether the evaluation runs after a step: never, because the weights stay the same."""
        return False

    def algorithm_state(self) -> dict[str, Any]:
        """Returns what the algorithm remembers: nothing, because there is none."""
        return {}

    def saves_after(self, step: int) -> bool:
        """Whether a checkpoint is written after a step."""
        return step == self.steps or is_due(step - 1, self.checkpoint_interval)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(RolloutJob):
    """A run that trains, put together by rlrun.runner.job.build_job or by a test."""

    algorithm: Algorithm
    policy: ModelHandle
    trainer: TrainerGroup
    engines: WeightReceiver | None = None
    """None if neither rollout nor evaluation needs engines."""
    recompute_old: bool = True
    """`old_log_probs = "trainer"`."""
    interpolate_old: bool = False
    """`old_log_probs = "interpolated"`."""
    reference: FrozenModel | None = None
    """The reference, on the trainer's ranks or on engines; None if the algorithm does not need one."""
    teacher: FrozenModel | None = None
    """The teacher, on the trainer's ranks or on engines; None if the algorithm does not need one."""
    source_teachers: Mapping[str, FrozenModel] = field(default_factory=dict)
    """The teachers of single sources of the data."""
    teacher_prompts: TeacherPrompts | None = None
    """Makes the teacher's own prompts; None: it reads the policy's."""
    teacher_tokens: TeacherTokens | None = None
    """The tokens of a teacher with a tokenizer of its own; None: it has the policy's."""
    may_be_stale: bool = False
    """Samples may come from older weights than those that the step updates."""
    averages_teacher: bool = False
    """The teacher is an average of the policy's weights, which every step of training moves."""
    critic: ModelHandle | None = None
    """The critic; None if the algorithm does not need one."""
    hooks: Hooks = field(default_factory=Hooks)
    """The hooks that see the samples of a step."""
    make_patches: Callable[[Sequence[PlacedImage]], Mapping[str, ImagePatches]] = _no_patches
    """Returns the patches of images by their digests; takes long."""
    critic_only_steps: int = 0
    """Steps at the beginning in which only the critic is trained, until its values are useful."""
    reference_interval: int | None = None
    """Steps after which the policy becomes the new reference, each time; None: never."""
    eval_interval: int | None = None
    weight_interval: int = 1
    """Steps after which engines get new weights, each time."""
    gpus: ComputeBudget | None = None
    """What speeds are measured against; None on CPUs."""
    probe: SyncProbe | None = None
    """Compares engines and trainer after each update; None where the model is trained as a whole."""
    true_on_policy: bool = False
    """Engines and trainer must have the same log-probs in every step."""
    compiles: bool = False
    """torch compiles the trainer's layers in the first step of a launch, which then takes longer."""

    @property
    def compares_log_probs(self) -> bool:
        """Whether the log-probs of engines and trainer must be equal; demonstrations have none of engines."""
        return self.true_on_policy and self.algorithm.needs.rollout

    def algorithm_state(self) -> dict[str, Any]:
        """Returns what the algorithm remembers from step to step."""
        return state_of(self.algorithm)

    def evaluates_after(self, step: int) -> bool:
        """Whether the evaluation runs after a step."""
        return step == self.steps or is_due(step - 1, self.eval_interval)

    def updates_engines_after(self, step: int) -> bool:
        """Whether engines get the weights of a step: at their interval, and where a resumed run or an
        evaluation needs them.
        """
        due = is_due(step - 1, self.weight_interval)
        evaluates = self.evaluation is not None and self.evaluates_after(step)
        return due or evaluates or self.saves_after(step)
