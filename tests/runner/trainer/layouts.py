"""The layouts that are compared with transformers: a model, degrees of parallelism, and how many ranks."""

from dataclasses import dataclass, field

from rlrun.specs.sections.trainer import ParallelSpec

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
    Case("qwen3", {"fsdp": 2, "reshard_after_forward": "never"}, fast=True),
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
    Case("qwen3", pipeline("InterleavedZeroBubble", context=2), fast=True),
    Case("qwen3", pipeline("1F1B", pipeline_layers=[3, 1]), fast=True),
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
    Case("qwen3-tied", fast=True),
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
    Case("qwen3-moe", trainer=SELECTIVE, fast=True),
    Case("qwen3-moe", {"fsdp": 2}, SELECTIVE),
    Case("qwen3", trainer=SELECTIVE, fast=True),
    Case("qwen3", {"context": 2}, FULL),
    Case("qwen3", pipeline("ZBVZeroBubble"), FULL),
    Case("deepseek", fast=True),
    Case("deepseek", {"fsdp": 2, "expert": 2}),
    Case("deepseek", {"tensor": 2}),
    Case("deepseek", {"context": 2, "expert": 2}),
    Case("deepseek", pipeline("1F1B", tensor=2, expert=2)),
    Case("gpt-oss", fast=True),
    Case("gpt-oss", {"fsdp": 2}),
    Case("gpt-oss", {"tensor": 2}),
    Case("gpt-oss", {"tensor": 2, "sequence_parallel": False}),
    Case("gpt-oss", {"fsdp": 2, "expert": 2}),
    Case("gpt-oss", {"tensor": 2, "expert": 2}),
    Case("gpt-oss", {"context": 2}),
    Case("gpt-oss", {"context": 2, "expert": 2}),
    Case("gpt-oss", pipeline("1F1B")),
    Case("gpt-oss", {"fsdp": 2, "tensor": 2, "expert": 4}, fast=True),
    Case("gpt-oss", pipeline("ZBVZeroBubble", tensor=2)),
    Case("qwen3-next"),
    Case("qwen3-next", {"fsdp": 2}),
    Case("qwen3-next", {"tensor": 2}),
    Case("qwen3-next", {"tensor": 2, "expert": 2, "sequence_parallel": False}),
    Case("qwen3-next", {"fsdp": 2, "tensor": 2, "expert": 4}),
    Case("qwen3-next", pipeline("1F1B", fsdp=2, expert=2)),
    Case("qwen3.5"),
    Case("qwen3.5", {"fsdp": 2}),
    Case("qwen3.5", {"replicate": 2}),
    Case("qwen3.5", {"tensor": 2}),
    Case("qwen3.5", {"tensor": 2, "sequence_parallel": False}),
    Case("qwen3.5", pipeline("1F1B")),
    Case("qwen3.5", {"replicate": 2, "fsdp": 2}, FULL),
    Case("qwen3.5", trainer=SELECTIVE),
    Case("qwen3.5-moe", fast=True),
    Case("qwen3.5-moe", {"fsdp": 2, "expert": 2}),
    Case("qwen3.5-moe", {"tensor": 2, "expert": 2}),
    Case("qwen3.5-moe", {"tensor": 2, "sequence_parallel": False}),
    Case("qwen3.5-moe", {"fsdp": 2, "tensor": 2, "expert": 4}),
    Case("qwen3.5-moe", pipeline("ZBVZeroBubble", tensor=2)),
    Case("mistral", fast=True),
    Case("mistral", {"fsdp": 2}, fast=True),
    Case("mistral", {"fsdp": 2, "reshard_after_forward": "never"}),
    Case("mistral", {"replicate": 2}),
    Case("mistral", {"replicate": 2, "fsdp": 2}, FULL),
    Case("mistral-tied"),
    Case("mistral-tied", {"fsdp": 2}),
    Case("olmo2", trainer=FULL),
    Case("olmo2"),
    Case("olmo2", {"fsdp": 2}, SELECTIVE),
    Case("qwen2", fast=True),
    Case("qwen2", {"tensor": 2}),
    Case("qwen2", pipeline("1F1B", fsdp=2)),
]
BY_NAME = {case.name: case for case in CASES}
