"""The layouts that are traced: those of the parity matrix in bfloat16, and what else a job can ask for."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.runner.planning.rank_layout import stages_of_rank
from rlrun.specs.sections.trainer import ParallelSpec
from tests.runner.trainer import layouts
from tests.runner.trainer.layouts import pipeline

DISTILLING = ("on_policy_distillation", "gkd")
FOREIGN = {"mistral", "mistral-tied", "olmo2", "gemma3", "mixtral", "olmoe"}
"""Models that transformers computes."""


@dataclass(frozen=True)
class Case:
    """One rank of a job."""

    model: str
    """A name of trainer_cases.MODELS."""
    parallel: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "grpo"
    exact: bool = False
    """The job has `true_on_policy`."""
    rank: int = 0
    slow: bool = False

    @property
    def name(self) -> str:
        """The layout, then the settings, then the rank."""
        parts = [f"{key}-{value}" for key, value in (self.parallel or {"alone": 1}).items()]
        settings = self.trainer | self.trainer.get("moe", {})
        parts += [f"{key}-{value}" for key, value in settings.items() if key not in ("moe", "lora")]
        parts += ["lora"] if self.has_adapters else []
        parts += ["exact"] if self.exact else []
        parts += [self.algorithm] if self.algorithm != "grpo" else []
        parts += [f"rank-{self.rank}"] if self.rank else []
        return "-".join([self.model, *parts])

    @property
    def ranks(self) -> int:
        """The number of ranks of the job."""
        return ParallelSpec(**self.parallel).world_size

    @property
    def has_loss(self) -> bool:
        """Whether the rank has the last pipeline stage."""
        parallel = ParallelSpec(**self.parallel)
        pipeline_rank = self.rank // (self.ranks // parallel.pipeline)
        return parallel.stages - 1 in stages_of_rank(pipeline_rank, parallel)

    def degree(self, axis: str) -> int:
        """Returns the number of ranks along an axis of parallelism."""
        return int(self.parallel.get(axis, 1))

    @property
    def offload(self) -> str:
        """What is in host memory."""
        return str(self.trainer.get("offload", "none"))

    @property
    def has_adapters(self) -> bool:
        """Whether only adapters are trained; the reference is then the model with those it started with."""
        return "lora" in self.trainer

    @property
    def layers(self) -> int:
        """The number of the model's layers: few, because each costs time."""
        parallel = ParallelSpec(**self.parallel)
        return sum(parallel.pipeline_layers or ()) or max(2, parallel.stages)

    def spec(self, folder: Path) -> dict[str, Any]:
        """Returns the job's spec."""
        grpo = {"type": "grpo", "entropy_coef": 0.1, "kl": {"in_loss": {"coef": 0.1}}}
        trainer = {"steps": 1, "dtype": "bfloat16", "max_tokens_per_rank": 64, "parallel": self.parallel}
        return {
            "model": {
                "path": str(folder),
                "implementation": "transformers" if self.model in FOREIGN else "torchtitan",
            },
            "data": {},
            "true_on_policy": self.exact,
            "rollout": {"temperature": 0.7},
            "algorithm": grpo if self.algorithm == "grpo" else {"type": self.algorithm},
            "engine": {"dtype": "bfloat16"},
            "cluster": {"gpus_per_node": self.ranks},
            "trainer": trainer | self.trainer,
            "teacher": {"path": str(folder)} if self.algorithm in DISTILLING else None,
        }


OPTIMIZER, ALL = {"offload": "optimizer"}, {"offload": "all"}
TWO_UPDATES = {"optimizer_steps": 2}
REPLAY = {"moe": {"routing_replay": "trainer"}} | TWO_UPDATES
BALANCING = {"moe": {"balancing": "bias"}}
MUON = {"optimizer": "muon"}
STAGES = pipeline("1F1B")

SETTINGS = [
    Case("qwen3", trainer={"dtype": "float32"}, slow=True),
    Case("qwen3-moe", trainer={"dtype": "float32"}),
    Case("qwen3", trainer={"head_dtype": "float32"}, slow=True),
    Case("qwen3", trainer={"optimizer": "sgd"}, slow=True),
    Case("qwen3", trainer=MUON, slow=True),
    Case("qwen3", {"fsdp": 2}, MUON),
    Case("qwen3", {"fsdp": 2, "tensor": 2}, MUON, slow=True),
    Case("qwen3-moe", trainer=REPLAY),
    Case("qwen3-moe", {"fsdp": 2, "tensor": 2, "expert": 4}, REPLAY, slow=True),
    Case("qwen3-moe", {"context": 2}, REPLAY, slow=True),
    Case("qwen3-moe", {"pipeline": 2, "context": 2}, REPLAY, slow=True),
    Case("qwen3-moe", {"fsdp": 2}, BALANCING),
    Case("deepseek", {"tensor": 2, "expert": 2}, slow=True),
    Case("qwen3", algorithm="on_policy_distillation", slow=True),
    Case("qwen3", {"fsdp": 2}, algorithm="on_policy_distillation"),
    Case("qwen3", algorithm="gkd"),
    Case("qwen3", {"tensor": 2}, algorithm="gkd", slow=True),
    Case("qwen3", algorithm="ppo"),
    Case("qwen3", {"fsdp": 2}, algorithm="ppo", slow=True),
    Case("qwen3", exact=True),
    Case("qwen3-tied", {"fsdp": 2}, layouts.FULL, exact=True, slow=True),
    Case("qwen3", {"fsdp": 2, "replicate": 2}, ALL, exact=True, slow=True),
]
"""Settings that the parity matrix does not vary."""

EXCHANGES = [
    Case("qwen3-moe", {"fsdp": 2, "expert": 2, "token_dispatcher": "deepep"}, slow=True),
    Case("qwen3-moe", {"fsdp": 2, "expert": 2, "token_dispatcher": "deepep"}, layouts.FULL, slow=True),
    Case("qwen3", {"tensor": 2, "async_tensor": True}, slow=True),
    Case("qwen3", {"fsdp": 2, "symmetric_memory": True}, slow=True),
]
"""Exchanges by other means than NCCL's collectives."""

RANKS = [
    Case("qwen3", {"fsdp": 2}, rank=1, slow=True),
    Case("qwen3", {"context": 2, "tensor": 2}, rank=3, slow=True),
    Case("qwen3", STAGES, rank=1),
    Case("qwen3", {"pipeline": 4}, rank=2, slow=True),
    Case("qwen3-moe", pipeline("DualPipeV"), rank=1, slow=True),
    Case("qwen3-moe", pipeline("1F1B", fsdp=2, expert=2), rank=3, slow=True),
    Case("gpt-oss", pipeline("1F1B"), rank=1, slow=True),
    Case("deepseek", pipeline("1F1B", tensor=2, expert=2), rank=2, slow=True),
]
"""Ranks other than the first: the last stage of a pipeline, another data rank."""

COVERED = (
    "qwen3-moe-alone-1",
    "qwen3-alone-1-activation_checkpointing-selective",
    "llama-alone-1",
    "qwen2-alone-1",
    "mistral-alone-1",
)
"""Fast cases of the parity matrix whose parts others trace: experts, recomputed layers, dense families."""
TRACED_LONG = "qwen3-tied-pipeline-2-pipeline_schedule-ZBVZeroBubble"
"""Takes as long as five other cases."""
PARITY = [
    Case(
        case.model,
        case.parallel,
        case.trainer,
        slow=not case.fast or case.name in (*COVERED, TRACED_LONG),
    )
    for case in layouts.CASES
    if not case.model.startswith("transformers-")  # they differ in nothing that a trace would show
]

ADAPTERS = {"lora": {"rank": 4}}
WITH_ADAPTERS = [
    Case("qwen3", trainer=ADAPTERS, slow=True),
    Case("qwen3", {"fsdp": 2}, ADAPTERS),
    Case("qwen3", {"tensor": 2}, ADAPTERS, slow=True),
    Case("qwen3", {"context": 2}, ADAPTERS, slow=True),
    Case("qwen3", {"fsdp": 2, "tensor": 2}, ADAPTERS, slow=True),
    Case("qwen3", STAGES, ADAPTERS, slow=True),
    Case("qwen3", STAGES, ADAPTERS, rank=1, slow=True),
    Case("qwen3-moe", {"fsdp": 2, "expert": 2}, ADAPTERS),
    Case("qwen3-moe", {"fsdp": 2, "tensor": 2, "expert": 4}, ADAPTERS, slow=True),
    Case("qwen3-tied", {"fsdp": 2}, ADAPTERS | OPTIMIZER, slow=True),
    Case("qwen3", trainer=ADAPTERS | ALL, slow=True),
    Case("qwen3", {"fsdp": 2}, ADAPTERS | ALL, slow=True),
]
"""Adapters; those of a model with experts are beside its dense matrices."""

COMPILE = {"compile": True}
COMPILED = [
    Case("qwen3", trainer=COMPILE, slow=True),
    Case("qwen3", {"fsdp": 2}, COMPILE),
    Case("qwen3-moe", {"fsdp": 2, "expert": 2}, COMPILE, slow=True),
    Case("qwen3", {"fsdp": 2}, COMPILE | ADAPTERS, slow=True),
]
"""Compiled layers: torch.compile's graphs and their gradients, without the code that it writes for a GPU."""

SHARE = {"share_prefixes": True}
SHARED_PREFIXES = [
    Case("qwen3", trainer=SHARE),
    Case("qwen3", trainer=SHARE | {"dtype": "float32"}, slow=True),
    Case("qwen3", {"fsdp": 2}, SHARE | layouts.SELECTIVE, slow=True),
    Case("qwen3", {"fsdp": 2, "tensor": 2}, SHARE | layouts.FULL, slow=True),
    Case("qwen3", pipeline("1F1B"), SHARE, rank=1, slow=True),
    Case("qwen3-moe", {"fsdp": 2, "expert": 2}, SHARE, slow=True),
    Case("qwen3", trainer=SHARE, algorithm="ppo", slow=True),
    Case("deepseek", {"tensor": 2, "expert": 2}, SHARE, slow=True),
    Case("qwen3", {"fsdp": 2}, SHARE | COMPILE, slow=True),
]
"""Prompts that sequences share: several calls of the attention kernel."""

FLOAT8, INT4 = {"precision": "float8"}, {"precision": "int4_qat"}
LOW_PRECISION = [
    Case("qwen3", trainer=FLOAT8, slow=True),
    Case("qwen3", {"fsdp": 2}, FLOAT8, slow=True),
    Case("qwen3", {"tensor": 2}, FLOAT8, slow=True),
    Case("qwen3", {"fsdp": 2}, FLOAT8 | layouts.FULL, slow=True),
    Case("qwen3", {"fsdp": 2}, FLOAT8 | COMPILE, slow=True),
    Case("qwen3", {"fsdp": 2}, FLOAT8 | COMPILE | layouts.SELECTIVE, slow=True),
    Case("qwen3", {"fsdp": 2}, FLOAT8 | ADAPTERS, slow=True),
    Case("qwen3", {"fsdp": 2}, FLOAT8 | ALL, slow=True),
    Case("qwen3", {"fsdp": 2}, FLOAT8 | OPTIMIZER | {"optimizer": "adamw_8bit"}, slow=True),
    Case("qwen3-moe", {"fsdp": 2, "expert": 2}, FLOAT8),
    Case("qwen3", {"fsdp": 2}, INT4, slow=True),
    Case("qwen3", {"fsdp": 2}, INT4 | layouts.FULL, slow=True),
    Case("qwen3", {"fsdp": 2}, INT4 | COMPILE, slow=True),
    Case("qwen3", {"fsdp": 2}, INT4 | ALL, slow=True),
    Case("qwen3", {"fsdp": 2}, INT4 | {"optimizer": "adamw_8bit"}, slow=True),
    Case("qwen3-moe", {"fsdp": 2, "expert": 2}, INT4, slow=True),
]
"""Matrices that multiply in low precision. The Triton kernels of `blockwise`, and of mxfp8 and nvfp4, take
tensors with content."""

OFFLOADED = [
    Case("qwen3", trainer=OPTIMIZER, slow=True),
    Case("qwen3", trainer=ALL),
    Case("qwen3", {"fsdp": 2}, OPTIMIZER),
    Case("qwen3", {"fsdp": 2}, ALL, slow=True),
    Case("qwen3-moe", {"fsdp": 2, "expert": 2}, ALL, slow=True),
    Case("qwen3", pipeline("1F1B", fsdp=2), ALL, slow=True),
    Case("qwen3-tied", STAGES, ALL, slow=True),
    Case("qwen3-tied", STAGES, ALL, rank=1),
    Case("qwen3-tied", STAGES, OPTIMIZER, rank=1, slow=True),
    Case("qwen3", trainer=ALL | TWO_UPDATES, slow=True),
    Case("qwen3", {"fsdp": 2}, ALL | TWO_UPDATES, slow=True),
    Case("qwen3-tied", STAGES, ALL | TWO_UPDATES, rank=1, slow=True),
    Case("qwen3-tied", pipeline("1F1B", fsdp=2), ALL, rank=2, slow=True),
    Case("qwen3", {"fsdp": 2}, ALL, algorithm="ppo", slow=True),
]
"""State in host memory: ranks exchange it on the device all the same, because NCCL takes nothing else."""
