"""The whole spec: one field for each section of the TOML file."""

from pydantic import Field

from rlrun.specs.sections.checkpoint import CheckpointSpec
from rlrun.specs.sections.cluster import ClusterSpec
from rlrun.specs.sections.companions import CriticSpec, ReferenceSpec, TeacherSpec
from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.debug import DebugSpec
from rlrun.specs.sections.engine import EngineSpec, NamedEngineSpec
from rlrun.specs.sections.evaluation import EvalSpec
from rlrun.specs.sections.fault_tolerance import FaultToleranceSpec
from rlrun.specs.sections.model import ModelSpec
from rlrun.specs.sections.rollout import RolloutSpec
from rlrun.specs.sections.scoring import FilterSpec, RewardSpec, ScoringSpec
from rlrun.specs.sections.section import PluginSection, Section
from rlrun.specs.sections.trainer import TrainerSpec


class AlgorithmSpec(PluginSection):
    """Which algorithm turns rewards into a loss; its parameters stand beside `type`."""

    type: str = "grpo"
    """Name of the algorithm (`rlrun plugins list`)."""


class TrackerSpec(PluginSection):
    """Where metrics go besides the console and `metrics.jsonl`, which are always written."""


class Spec(Section):
    """A post-training job."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run and of its folder under `runs_dir`."""
    runs_dir: str = Field(default="runs", min_length=1)
    """Folder that holds the run folders; relative to where `rlrun` is started."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of data order, sampling and initialisation."""
    deterministic: bool = False
    """Same spec, seed and layout give the same metrics bit for bit. Scoring waits for generation."""
    model: ModelSpec
    """The policy."""
    data: DataSpec
    """Where prompts come from."""
    rollout: RolloutSpec = RolloutSpec()
    """How samples are drawn."""
    rewards: tuple[RewardSpec, ...] = ()
    """What samples are worth, `[[rewards]]`."""
    scoring: ScoringSpec = ScoringSpec()
    """Where and how long rewards run."""
    filters: tuple[FilterSpec, ...] = ()
    """Which groups are trained on, `[[filters]]`."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """Advantages and loss."""
    trainer: TrainerSpec = TrainerSpec()
    """Optimisation and the parallel layout."""
    reference: ReferenceSpec = ReferenceSpec()
    """Where a KL term measures from."""
    teacher: TeacherSpec | None = None
    """What on-policy distillation learns from."""
    critic: CriticSpec = CriticSpec()
    """What tells an actor-critic algorithm what to expect."""
    engine: EngineSpec = EngineSpec()
    """What generates."""
    engines: tuple[NamedEngineSpec, ...] = ()
    """Other models that are asked, `[[engines]]`."""
    cluster: ClusterSpec = ClusterSpec()
    """The machines."""
    eval: EvalSpec = EvalSpec()
    """Held-out datasets."""
    fault_tolerance: FaultToleranceSpec = FaultToleranceSpec()
    """What is started again when it dies."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """What is saved, and when."""
    debug: DebugSpec = DebugSpec()
    """A part of the job alone."""
    trackers: tuple[TrackerSpec, ...] = ()
    """Other sinks for metrics, `[[trackers]]`."""
