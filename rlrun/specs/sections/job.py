"""The whole spec: one field for each section of the TOML file."""

from pydantic import Field

from rlrun.specs.sections.auxiliary_models import CriticSpec, ReferenceSpec, TeacherSpec
from rlrun.specs.sections.checkpoint import CheckpointSpec
from rlrun.specs.sections.cluster import ClusterSpec
from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.debug import DebugSpec
from rlrun.specs.sections.engine import EngineSpec, NamedEngineSpec
from rlrun.specs.sections.evaluation import EvalSpec
from rlrun.specs.sections.fault_tolerance import FaultToleranceSpec
from rlrun.specs.sections.model import ModelSpec
from rlrun.specs.sections.optimizer import OptimizerSpec
from rlrun.specs.sections.rollout import RolloutFunctionSpec, RolloutSpec
from rlrun.specs.sections.scoring import FilterSpec, RewardSpec, ScoringSpec
from rlrun.specs.sections.section import PluginSection, Section
from rlrun.specs.sections.submit import SubmitSpec
from rlrun.specs.sections.sweep_section import SweepSpec
from rlrun.specs.sections.trainer import TrainerSpec


class AlgorithmSpec(PluginSection):
    """The algorithm that computes advantages and the loss; its parameters are further keys of this table."""

    type: str = "grpo"
    """Name of the algorithm (`rlrun plugins list`)."""


class TrackerSpec(PluginSection):
    """A further destination of metrics. The console and `metrics.jsonl` always receive them."""


class HookSpec(PluginSection):
    """A hook: code of yours that a step calls, to look at it or to change it."""


class Spec(Section):
    """A post-training job."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run, and of its folder in `runs_dir`."""
    runs_dir: str = Field(default="runs", min_length=1)
    """Folder that contains the folders of all runs; relative to the folder where `rlrun` is started."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Seed of the data order, of sampling, and of random initial weights."""
    deterministic: bool = False
    """Produce the same metrics bit for bit for the same spec, seed and layout. Rewards are then computed only
    after a whole batch has been generated, which is slower."""
    true_on_policy: bool = False
    """Make the log-probs of engines and trainer equal bit for bit, whatever batch a token is computed in, so
    that `train/train_rollout_logprob_abs_diff` is 0.0 in every step. On CPUs native engines and trainer then
    compute with the same operators. On GPUs, where this was never run, the trainer rounds as SGLang servers
    with `rl_on_policy_target` do. A step with another difference ends the run (docs/true-on-policy.md)."""
    model: ModelSpec
    """The policy."""
    data: DataSpec
    """The source of prompts."""
    rollout: RolloutSpec = RolloutSpec()
    """How samples are generated."""
    rewards: tuple[RewardSpec, ...] = ()
    """The rewards of samples, `[[rewards]]`."""
    scoring: ScoringSpec = ScoringSpec()
    """The processes that compute rewards."""
    filters: tuple[FilterSpec, ...] = ()
    """The filters that choose which groups are trained on, `[[filters]]`."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """The advantages and the loss."""
    trainer: TrainerSpec = TrainerSpec()
    """Optimisation and the parallel layout."""
    reference: ReferenceSpec = ReferenceSpec()
    """The reference policy of a KL term."""
    teacher: TeacherSpec | None = None
    """The teacher of on-policy distillation."""
    critic: CriticSpec = CriticSpec()
    """The critic of an actor-critic algorithm."""
    engine: EngineSpec = EngineSpec()
    """The engines of the policy."""
    engines: tuple[NamedEngineSpec, ...] = ()
    """Engines that serve other models, `[[engines]]`."""
    cluster: ClusterSpec = ClusterSpec()
    """The machines."""
    eval: EvalSpec = EvalSpec()
    """Evaluation on held-out datasets."""
    fault_tolerance: FaultToleranceSpec = FaultToleranceSpec()
    """Restarts after failures."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Checkpoints and the exported model."""
    debug: DebugSpec = DebugSpec()
    """Options that run only a part of the job."""
    hooks: tuple[HookSpec, ...] = ()
    """Code of yours that steps call, in this order, `[[hooks]]`."""
    trackers: tuple[TrackerSpec, ...] = ()
    """Further destinations of metrics, `[[trackers]]`."""
    sweep: SweepSpec | None = None
    """Trials of this job with other values for some keys."""
    submit: SubmitSpec | None = None
    """The scheduler that `rlrun submit` hands the job to."""

    @property
    def functions(self) -> tuple[RolloutFunctionSpec, ...]:
        """The rollout plugins: training's, then those that evaluation datasets have of their own."""
        given = (dataset.given("function") for dataset in self.eval.datasets)
        return (self.rollout.function, *(function for function in given if function is not None))

    @property
    def optimizers(self) -> tuple[tuple[str, OptimizerSpec], ...]:
        """The sections that describe an optimizer, with their names."""
        return ("trainer", self.trainer), ("critic", self.critic)
