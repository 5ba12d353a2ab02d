"""What a run is made of, as the loop sees it, and how far it is."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rlrun.plugins.types import Group
from rlrun.runner.batches.passes import Pack
from rlrun.runner.contracts.interfaces import Advantages, FrozenModel, Trainer, WeightReceiver
from rlrun.runner.job.compute_budget import ComputeBudget
from rlrun.runner.job.device_sharing import DeviceSharing
from rlrun.runner.job.stopping import StopRequest
from rlrun.runner.rollouts.synchronous import Batch

Result = TypeVar("Result")


class BatchSource(Protocol):
    """Where a step's groups come from: the policy's rollouts, or demonstrations."""

    async def next(self, version: int) -> Batch:
        """The next batch; engines serve weights `version`."""

    def state(self) -> dict[str, Any]:
        """The place in the data after the batches so far, as JSON values."""

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state as it is now, to be read later or never: cheap to take after every step."""

    async def restore(self, state: dict[str, Any]) -> None:
        """Go on from a saved place."""

    async def close(self) -> None:
        """Stop reading ahead."""


class Evaluation(Protocol):
    """Held-out datasets (rlrun.runner.rollouts.evaluation.Evaluator)."""

    async def run(self) -> dict[str, float]:
        """`eval/…` metrics of the weights that the engines serve."""


class Checkpoints(Protocol):
    """Where training state is kept (rlrun.runner.checkpoints.saving.Checkpoints)."""

    async def save(self, trainer: Trainer | None, step: int, driver: dict[str, Any]) -> None:
        """Keep everything, or nothing; it may take until `settle`. None: there is no trainer."""

    async def settle(self) -> None:
        """Return when what was saved is there, or has failed."""

    def newest(self) -> Path | None:
        """The newest complete checkpoint."""


class Journal(Protocol):
    """Whoever wants to know (rlrun.runner.records.journal.Journal)."""

    def step(self, step: int, metrics: dict[str, float], groups: Sequence[Group]) -> None:
        """Metrics of a finished step and the groups it trained on."""

    def samples(self, step: int, groups: Sequence[Group]) -> None:
        """The groups of a step whose metrics are not complete yet."""

    def doing(self, what: str, done: int = 0, total: int = 0) -> None:
        """What the job is busy with now, and how much of it is done where `total` is given."""

    async def timed(self, phase: str, work: Awaitable[Result]) -> Result:
        """Await a phase that may take long, and show it."""

    async def flush(self) -> None:
        """Return when every step so far is on disk."""


@dataclass(slots=True)
class Progress:
    """How far the job is; part of every checkpoint."""

    step: int = 0
    """Steps done."""
    version: int = 0
    """Weight version that the engines serve; + 1 on every push after a step."""
    seconds: float = 0.0
    """Time spent in steps, over all launches of this run."""
    generated_tokens: int = 0
    trained_tokens: int = 0
    unevaluated: dict[str, float] | None = None
    """Metrics of the last step where its evaluation is still to be made; None: all is done."""
    place: Callable[[], dict[str, Any]] = field(default=dict, compare=False)
    """State of the source after the last finished step."""

    def saved(self) -> dict[str, Any]:
        """The driver's part of a checkpoint, as JSON values."""
        counts = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "place"}
        return {"progress": counts, "data": self.place()}


@dataclass(frozen=True, slots=True)
class Job:
    """The parts of a run, put together by rlrun.runner.job.launch or by a test."""

    steps: int
    source: BatchSource
    algorithm: Advantages
    pack: Pack
    trainer: Trainer
    journal: Journal
    checkpoints: Checkpoints
    engines: WeightReceiver | None = None
    """None where neither rollout nor evaluation needs any."""
    evaluation: Evaluation | None = None
    recompute_old: bool = True
    """`old_log_probs = "trainer"`."""
    pack_teacher: Pack | None = None
    """Packs for the teacher's layout; None without a teacher."""
    teacher: FrozenModel | None = None
    """The teacher, where engines serve it."""
    reference: FrozenModel | None = None
    """The reference, where engines serve it."""
    pack_critic: Pack | None = None
    """Packs for the critic's layout; None without a critic."""
    critic_only_steps: int = 0
    """The policy stays as it is for so many steps, until the critic knows what to expect."""
    reference_interval: int | None = None
    """The reference becomes the policy every so many steps; None: never."""
    eval_before_training: bool = True
    eval_interval: int | None = None
    checkpoint_interval: int | None = None
    peak_memory: Callable[[], Mapping[str, float]] = dict
    """Bytes by role."""
    engine_counts: Callable[[], dict[str, float]] = dict
    """Metrics that count what engines did since the last call."""
    gpus: ComputeBudget | None = None
    """What speeds are measured against; None on CPUs."""
    compiles: bool = False
    """torch compiles the trainer's layers in the first step of a launch, which takes longer then."""
    stop: StopRequest = field(default_factory=StopRequest)
    """Whether the run was asked to stop."""
    turns: DeviceSharing | None = None
    """Where trainer and engines share devices, and one sleeps while the other works."""
