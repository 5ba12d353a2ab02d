"""The whole spec: one field for each section of the TOML file."""

from pydantic import Field

from rlrun.specs.checkpoint import CheckpointSpec
from rlrun.specs.cluster import ClusterSpec
from rlrun.specs.data import DataSpec
from rlrun.specs.engine import EngineSpec
from rlrun.specs.evaluation import EvalSpec
from rlrun.specs.model import ModelSpec
from rlrun.specs.rollout import RolloutSpec
from rlrun.specs.scoring import FilterSpec, RewardSpec, ScoringSpec
from rlrun.specs.section import PluginSection, Section
from rlrun.specs.trainer import TrainerSpec


class AlgorithmSpec(PluginSection):
    """Which algorithm turns rewards into a loss; its parameters stand beside `type`."""

    type: str = "grpo"


class TrackerSpec(PluginSection):
    """Where metrics go besides the console and `metrics.jsonl`, which are always written."""


class Spec(Section):
    """A post-training job."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run and of its folder under `runs_dir`."""
    runs_dir: str = "runs"
    """Folder that holds the run folders; relative to where `rlrun` is started."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of data order, sampling and initialisation."""
    deterministic: bool = False
    """Same spec, seed and layout give the same metrics bit for bit. Costs overlap between generation and scoring."""
    model: ModelSpec
    data: DataSpec
    rollout: RolloutSpec = RolloutSpec()
    rewards: tuple[RewardSpec, ...] = ()
    scoring: ScoringSpec = ScoringSpec()
    filters: tuple[FilterSpec, ...] = ()
    algorithm: AlgorithmSpec = AlgorithmSpec()
    trainer: TrainerSpec
    engine: EngineSpec = EngineSpec()
    cluster: ClusterSpec = ClusterSpec()
    eval: EvalSpec = EvalSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    trackers: tuple[TrackerSpec, ...] = ()
