"""The layouts that are compared with transformers: a model, degrees of parallelism, and how many ranks."""

from dataclasses import dataclass, field

from rlrun.models.families.by_transformers import TRANSFORMERS
from rlrun.specs.sections.trainer import ParallelSpec
from tests.runner.trainer.trainer_cases import MODELS

OTHERS = [name for name in MODELS if name.startswith("transformers-")]
"""Families of transformers' layers that are compared on one rank, and on each layout that they offer."""
SCHEDULES = ("1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV")

FULL, SELECTIVE = {"activation_checkpointing": "full"}, {"activation_checkpointing": "selective"}


@dataclass(frozen=True)
class Case:
    """One model on one layout."""

    model: str
    parallel: dict = field(default_factory=dict)
    trainer: dict = field(default_factory=dict)
    """Other settings."""
    fast: bool = False
    """Part of `make test`; the others of `make parity`."""

    @property
    def name(self):
        parts = [f"{key}-{value}" for key, value in (self.parallel or {"alone": 1}).items()]
        return "-".join([self.model, *parts, *self.trainer.values()])

    @property
    def ranks(self):
        return ParallelSpec(**self.parallel).world_size


def pipeline(schedule, **others):
    return {"pipeline": 2, "pipeline_schedule": schedule, **others}


CASES = [
    Case("qwen3", fast=True),
    Case("qwen3", {"fsdp": 2}, fast=True),
    Case("qwen3", {"fsdp": 2, "reshard_after_forward": "never"}),
    Case("qwen3", {"fsdp": 2, "reshard_after_forward": "always"}),
    Case("qwen3", {"replicate": 2}),
    Case("qwen3", {"tensor": 2}),
    Case("qwen3", {"tensor": 2, "sequence_parallel": False}),
    Case("qwen3", {"context": 2}, fast=True),
    Case("qwen3", {"context": 2, "context_balance": "none"}),
    *(Case("qwen3", pipeline(schedule), fast=schedule == "1F1B") for schedule in SCHEDULES),
    Case("qwen3", {"fsdp": 2, "tensor": 2}),
    Case("qwen3", {"replicate": 2, "fsdp": 2}),
    Case("qwen3", {"context": 2, "tensor": 2}),
    Case("qwen3", {"context": 2, "fsdp": 2}),
    Case("qwen3", {"context": 4}),
    Case("qwen3", pipeline("1F1B", tensor=2)),
    Case("qwen3", pipeline("1F1B", fsdp=2)),
    Case("qwen3", pipeline("InterleavedZeroBubble", context=2)),
    Case("qwen3", pipeline("1F1B", pipeline_layers=[3, 1])),
    Case("qwen3", pipeline("1F1B", pipeline_layers=[1, 3], fsdp=2)),
    Case("qwen3", pipeline("1F1B", fsdp=2, reshard_after_forward="always")),
    Case("qwen3", {"pipeline": 4}),
    Case("qwen3-moe", fast=True),
    Case("qwen3-moe", {"fsdp": 2}),
    Case("qwen3-moe", {"tensor": 2}),
    Case("qwen3-moe", {"context": 2}),
    *(Case("qwen3-moe", pipeline(schedule)) for schedule in ("1F1B", "DualPipeV")),
    Case("qwen3-moe", {"fsdp": 2, "expert": 2}),
    Case("qwen3-moe", {"tensor": 2, "expert": 2}),
    Case("qwen3-moe", {"tensor": 2, "expert": 2, "sequence_parallel": False}),
    Case("qwen3-moe", {"context": 2, "expert": 2}),
    Case("qwen3-moe", {"fsdp": 2, "tensor": 2, "expert": 4}, fast=True),
    Case("qwen3-moe", {"fsdp": 4, "expert": 2}),
    Case("qwen3-moe", {"fsdp": 4, "expert": 2, "reshard_after_forward": "never"}),
    Case("qwen3-moe", {"replicate": 2, "fsdp": 2, "expert": 2}),
    Case("qwen3-moe", pipeline("1F1B", fsdp=2, expert=2)),
    Case("qwen3-moe", pipeline("1F1B", tensor=2, expert=2)),
    Case("qwen3-tied"),
    Case("qwen3-tied", {"fsdp": 2}),
    Case("qwen3-tied", {"tensor": 2}),
    Case("qwen3-tied", pipeline("1F1B")),
    Case("qwen3-tied", pipeline("ZBVZeroBubble"), fast=True),
    Case("qwen3-tied", {"pipeline": 4}),
    Case("qwen3-tied", pipeline("Interleaved1F1B", fsdp=2)),
    Case("llama", fast=True),
    Case("llama", {"tensor": 2}),
    Case("llama", pipeline("1F1B", context=2)),
    Case("qwen3-moe", trainer=FULL, fast=True),
    Case("qwen3-moe", {"fsdp": 2, "expert": 2}, FULL),
    Case("qwen3-moe", trainer=SELECTIVE),
    Case("qwen3-moe", {"fsdp": 2}, SELECTIVE),
    Case("qwen3", trainer=SELECTIVE, fast=True),
    Case("qwen3", {"context": 2}, FULL),
    Case("qwen3", pipeline("ZBVZeroBubble"), FULL),
    Case("deepseek", fast=True),
    Case("deepseek", {"fsdp": 2, "expert": 2}),
    Case("deepseek", {"tensor": 2}),
    Case("deepseek", {"context": 2, "expert": 2}),
    Case("deepseek", pipeline("1F1B", tensor=2, expert=2)),
    Case("glm", fast=True),
    Case("glm", {"fsdp": 2, "expert": 2}),
    Case("glm", {"replicate": 2}),
    Case("glm", {"tensor": 2}),
    Case("glm", {"tensor": 2, "expert": 2, "sequence_parallel": False}),
    Case("glm", {"context": 2, "expert": 2}),
    Case("glm", {"fsdp": 2, "tensor": 2, "expert": 4}),
    Case("glm", pipeline("1F1B", tensor=2, expert=2)),
    Case("glm-air"),
    Case("glm-flash"),
    Case("glm-flash", {"fsdp": 2, "expert": 2}),
    Case("glm-flash", {"tensor": 2}),
    Case("glm-flash", {"context": 2}),
    Case("glm-flash", pipeline("1F1B")),
    Case("kimi"),
    Case("kimi", {"fsdp": 2, "expert": 2}),
    Case("kimi", {"tensor": 2}),
    Case("kimi", {"context": 2}),
    Case("kimi", pipeline("1F1B")),
    Case("mimo"),
    Case("mimo", {"fsdp": 2}),
    Case("mimo", {"tensor": 2}),
    Case("mimo", {"context": 2}),
    Case("mimo", pipeline("1F1B")),
    Case("minimax", fast=True),
    Case("minimax", {"fsdp": 2, "expert": 2}),
    Case("minimax", {"replicate": 2}),
    Case("minimax", {"tensor": 2}),
    Case("minimax", {"tensor": 2, "expert": 2, "sequence_parallel": False}),
    Case("minimax", {"context": 2, "expert": 2}),
    Case("minimax", {"fsdp": 2, "tensor": 2, "expert": 4}),
    Case("minimax", pipeline("ZBVZeroBubble", tensor=2)),
    Case("minimax", {"tensor": 2}, FULL),
    Case("deepseek-v3.2", fast=True),
    Case("deepseek-v3.2", {"fsdp": 2, "expert": 2}),
    Case("deepseek-v3.2", {"tensor": 2}),
    Case("deepseek-v3.2", {"context": 2, "expert": 2}),
    Case("deepseek-v3.2", pipeline("1F1B", tensor=2, expert=2)),
    Case("deepseek-v3.2", trainer=SELECTIVE),
    Case("glm-5", fast=True),
    Case("glm-5", {"fsdp": 2, "expert": 2}),
    Case("glm-5", {"replicate": 2}),
    Case("glm-5", {"tensor": 2}),
    Case("glm-5", {"tensor": 2, "expert": 2, "sequence_parallel": False}, FULL),
    Case("glm-5", {"context": 2}),
    Case("glm-5", {"context": 2, "context_balance": "none"}, FULL),
    Case("glm-5", {"fsdp": 2, "tensor": 2, "expert": 4}),
    Case("glm-5", pipeline("1F1B", pipeline_layers=[3, 3])),
    Case("glm-5", pipeline("ZBVZeroBubble", tensor=2, pipeline_layers=[1, 2, 2, 1])),
    Case("glm-5", trainer=FULL),
    Case("glm-5", trainer=SELECTIVE),
    Case("glm-5-ties"),
    Case("gpt-oss", fast=True),
    Case("gpt-oss", {"fsdp": 2}),
    Case("gpt-oss", {"tensor": 2}),
    Case("gpt-oss", {"tensor": 2, "sequence_parallel": False}),
    Case("gpt-oss", {"fsdp": 2, "expert": 2}),
    Case("gpt-oss", {"tensor": 2, "expert": 2}),
    Case("gpt-oss", {"context": 2}),
    Case("gpt-oss", {"context": 2, "expert": 2}),
    Case("gpt-oss", pipeline("1F1B")),
    Case("gpt-oss", {"fsdp": 2, "tensor": 2, "expert": 4}),
    Case("gpt-oss", pipeline("ZBVZeroBubble", tensor=2)),
    Case("qwen3-next"),
    Case("qwen3-next", {"fsdp": 2}),
    Case("qwen3-next", {"tensor": 2}),
    Case("qwen3-next", {"tensor": 2, "expert": 2, "sequence_parallel": False}),
    Case("qwen3-next", {"fsdp": 2, "tensor": 2, "expert": 4}),
    Case("qwen3-next", {"context": 2, "expert": 2}),
    Case("qwen3-next", pipeline("1F1B", fsdp=2, expert=2)),
    Case("qwen3.5"),
    Case("qwen3.5", {"fsdp": 2}),
    Case("qwen3.5", {"replicate": 2}),
    Case("qwen3.5", {"tensor": 2}),
    Case("qwen3.5", {"tensor": 2, "sequence_parallel": False}),
    Case("qwen3.5", {"context": 2}),
    Case("qwen3.5", {"context": 2, "context_balance": "none"}, FULL),
    Case("qwen3.5", {"context": 4}),
    Case("qwen3.5", {"context": 2, "tensor": 2}),
    Case("qwen3.5", {"context": 2, "tensor": 2, "sequence_parallel": False}),
    Case("qwen3.5", {"context": 2, "fsdp": 2}, SELECTIVE),
    Case("qwen3.5", pipeline("1F1B", context=2)),
    Case("qwen3.5", pipeline("1F1B")),
    Case("qwen3.5", {"replicate": 2, "fsdp": 2}, FULL),
    Case("qwen3.5", trainer=SELECTIVE),
    Case("qwen3.5-moe", fast=True),
    Case("qwen3.5-moe", {"fsdp": 2, "expert": 2}),
    Case("qwen3.5-moe", {"context": 2}, fast=True),
    Case("qwen3.5-moe", {"tensor": 2, "expert": 2}),
    Case("qwen3.5-moe", {"tensor": 2, "sequence_parallel": False}),
    Case("qwen3.5-moe", {"fsdp": 2, "tensor": 2, "expert": 4}),
    Case("qwen3.5-moe", pipeline("ZBVZeroBubble", tensor=2)),
    Case("mistral", fast=True),
    Case("mistral", {"fsdp": 2}),
    Case("mistral", {"fsdp": 2, "reshard_after_forward": "never"}),
    Case("mistral", {"replicate": 2}),
    Case("mistral", {"replicate": 2, "fsdp": 2}, FULL),
    Case("mistral-tied"),
    Case("mistral-tied", {"fsdp": 2}),
    Case("olmo2", trainer=FULL),
    Case("olmo2"),
    Case("olmo2", {"fsdp": 2}, SELECTIVE),
    Case("mistral", {"tensor": 2}, fast=True),
    Case("mistral-tied", {"tensor": 2}),
    Case("olmo2", {"fsdp": 2, "tensor": 2}),
    Case("gemma3", fast=True),
    Case("gemma3", {"fsdp": 2}),
    Case("gemma3", {"tensor": 2}, FULL),
    Case("mixtral"),
    Case("mixtral", {"fsdp": 2}),
    Case("mixtral", {"tensor": 2}),
    Case("mixtral", {"fsdp": 2, "expert": 2}, fast=True),
    Case("mixtral", {"tensor": 2, "expert": 2}),
    Case("mixtral", {"fsdp": 2, "tensor": 2, "expert": 4}, FULL),
    Case("olmoe"),
    Case("olmoe", {"fsdp": 2, "expert": 2}),
    Case("olmoe", {"replicate": 2, "fsdp": 2, "expert": 2}),
    *(Case(name) for name in OTHERS),
    *(
        Case(name, {"tensor": 2} if degree == "tensor" else {"fsdp": 2, "expert": 2})
        for name in OTHERS
        for degree in sorted(TRANSFORMERS[str(MODELS[name]["family"])].layouts)
    ),
    Case("qwen2", fast=True),
    Case("qwen2", {"tensor": 2}),
    Case("qwen2", {"context": 2}),
    Case("qwen2", pipeline("1F1B", fsdp=2)),
]
BY_NAME = {case.name: case for case in CASES}
