"""The layouts that are traced: those of the parity matrix in bfloat16, and what else a job can ask for."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlrun.runner.planning.rank_layout import stages_of_rank
from rlrun.specs.sections.trainer import ParallelSpec
from tests.runner.trainer import layouts

SPARSE = {"qwen3-moe", "deepseek", "gpt-oss"}
"""Models with experts."""
FOREIGN = {"mistral", "mistral-tied", "olmo2"}
"""Models that transformers computes."""


@dataclass(frozen=True)
class Case:
    """One rank of a job."""

    model: str
    """A name of trainer_cases.MODELS."""
    parallel: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    algorithm: str = "grpo"
    rank: int = 0
    slow: bool = False

    @property
    def name(self) -> str:
        """The layout, then the settings, then the rank."""
        parts = [f"{key}-{value}" for key, value in (self.parallel or {"alone": 1}).items()]
        parts += [f"{key}-{value}" for key, value in self.trainer.items()]
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
    def layers(self) -> int:
        """The number of the model's layers: few, because each costs time."""
        return max(2, ParallelSpec(**self.parallel).stages)

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
            "rollout": {"temperature": 0.7},
            "algorithm": grpo if self.algorithm == "grpo" else {"type": self.algorithm},
            "engine": {"dtype": "bfloat16"},
            "cluster": {"gpus_per_node": self.ranks},
            "trainer": trainer | self.trainer,
        }


PARITY = [Case(case.model, case.parallel, case.trainer, slow=not case.fast) for case in layouts.CASES]

OFFLOADED = [
    Case("qwen3", trainer={"offload": "all"}),
    Case("qwen3", {"fsdp": 2}, {"offload": "all"}),
    Case("qwen3-tied", layouts.pipeline("1F1B"), {"offload": "all"}),
    Case("qwen3-tied", layouts.pipeline("1F1B"), {"offload": "all"}, rank=1),
    Case("qwen3-tied", layouts.pipeline("1F1B"), {"offload": "optimizer"}, rank=1),
    Case("qwen3", {"fsdp": 2}, {"offload": "all"}, algorithm="ppo", slow=True),
]
"""State in host memory: ranks exchange it on the device all the same, because NCCL takes nothing else."""
