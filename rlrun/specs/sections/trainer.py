"""`[trainer]`: optimisation and the parallel layout."""

from typing import Literal

from pydantic import Field

from rlrun.specs.sections.optimizer import OptimizerSpec
from rlrun.specs.sections.section import Section

PipelineSchedule = Literal[
    "1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
]
ONE_STAGE_SCHEDULES = ("1F1B", "GPipe")


class ParallelSpec(Section):
    """Degrees of parallelism; the product of all but `expert` is the number of trainer ranks."""

    fsdp: int = Field(default=1, ge=1)
    """Ranks that shard parameters, gradients and optimizer state."""
    replicate: int = Field(default=1, ge=1)
    """Replicas of the sharded group (HSDP)."""
    tensor: int = Field(default=1, ge=1)
    """Ranks that split each layer's matrices; attention heads must divide by it."""
    sequence_parallel: bool = True
    """Tensor-parallel ranks also split the tokens between the matrices (norms, residual stream)."""
    context: int = Field(default=1, ge=1)
    """Ranks that split the tokens of a micro-batch, attention included; the budget grows with it."""
    context_balance: Literal["head_tail", "none"] = "head_tail"
    """`head_tail`: each rank gets an early and a late piece, so that causal attention is the same work for
    all; `none`: one piece each, in order."""
    pipeline: int = Field(default=1, ge=1)
    """Ranks that hold different layers."""
    pipeline_schedule: PipelineSchedule = "1F1B"
    """Order of forward and backward passes. `1F1B` and `GPipe` give a rank one stage, the others two."""
    expert: int = Field(default=1, ge=1)
    """Ranks that share out a layer's experts; it divides fsdp × context × tensor, whose ranks it uses."""

    @property
    def world_size(self) -> int:
        """Number of trainer ranks."""
        return self.data_degree * self.context * self.tensor * self.pipeline

    @property
    def data_degree(self) -> int:
        """Ranks that see different samples."""
        return self.fsdp * self.replicate

    @property
    def stages(self) -> int:
        """Pieces the layers are cut into."""
        return self.pipeline * (1 if self.pipeline_schedule in ONE_STAGE_SCHEDULES else 2)


RoutingReplay = Literal["off", "trainer", "engine"]


class MoeSpec(Section):
    """Mixture-of-experts models: how the trainer routes."""

    routing_replay: RoutingReplay = "off"
    """Which experts updates send tokens to: those that routers choose anew; `trainer`: those that the pass
    over old log-probs chose (GSPO's routing replay); `engine`: those that the SGLang server chose."""
    router_dtype: Literal["float32", "trainer"] = "float32"
    """Precision of router logits. `trainer`: that of `trainer.dtype`, as engines compute them."""
    balancing: Literal["off", "bias"] = "off"
    """What evens out the load of experts. `bias`: a bias by expert, which decides with the scores which ones
    are chosen, moves after every optimizer step (auxiliary-loss-free balancing, arXiv:2408.15664)."""
    balancing_rate: float = Field(default=1e-3, gt=0)
    """How far it moves in a step."""
    balancing_export: bool = True
    """Engines and exports get the bias, in families whose checkpoints have a place for it (DeepSeek-V3).
    False: theirs stays what the model came with."""


class TrainerSpec(OptimizerSpec):
    """What one optimizer step is, and how many there are."""

    steps: int | None = Field(default=None, ge=1)
    """Rollout steps to run (SFT: optimizer steps). Exactly one of `steps` and `epochs`."""
    epochs: int | None = Field(default=None, ge=1)
    """Passes over the dataset, each ⌊rows / batch⌋ steps."""
    global_batch_size: int | None = Field(default=None, ge=1)
    """G: samples of one optimizer step. None: all samples of a rollout step, or P·n / `optimizer_steps`."""
    optimizer_steps: int | None = Field(default=None, ge=1)
    """S: optimizer steps of one rollout step. None: P·n / G."""
    max_tokens_per_rank: int = Field(default=8192, ge=1)
    """Token budget of a packed micro-batch, times `parallel.context`; a longer sample is alone in its own."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Samples of a micro-batch, whatever their tokens. None: as many as the token budget takes."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Precision of matrix products and activations; parameters, gradients and optimizer state are float32."""
    head_dtype: Literal["model", "float32"] = "model"
    """Precision of logits, on the trainer and on the job's engines. `model`: that of `trainer.dtype` and
    `engine.dtype`; `float32`: the head multiplies in float32, by weights that stay as they are, so that
    trainer and engines agree better (MiniMax-M1, arXiv:2506.13585)."""
    freeze: tuple[str, ...] = ()
    """Parameters that are not trained, by patterns of their Hugging Face names: `model.embed_tokens.*`."""
    reduction: Literal["per_sample_mean", "per_token", "dr_grpo"] = "per_sample_mean"
    """How token losses become one number (docs/algorithms.md)."""
    old_log_probs: Literal["trainer", "rollout"] | None = None
    """Denominator of the ratio: recomputed by the trainer (skipped where one optimizer step is taken, as the
    ratio is 1 then), or the engine's. None: the engine's where samples may be of older weights
    (`rollout.mode = "async"`, `rollout.partial`) and the algorithm has no correction, else the trainer's."""
    non_finite: Literal["stop", "skip"] = "stop"
    """A non-finite loss or gradient ends the job, or skips that optimizer step and counts it."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """What the backward pass computes again instead of keeping it: nothing; all but attention and every other
    matrix product; or whole layers."""
    compile: bool = False
    """Layers are compiled by torch (inductor) at their first use, attention and experts left as they are:
    faster on GPUs, after a minute or more."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What lies in host memory rather than on the GPU: nothing; optimizer state, which visits it for its step
    a few parameters at a time; or parameters and gradients too, with layers fetched as they are computed and
    the step taken on the host. The critic's as well."""
    logits_chunk: int = Field(default=1024, ge=1)
    """Tokens whose float32 logits exist at a time."""
    moe: MoeSpec = MoeSpec()
    """Mixture-of-experts models."""
    parallel: ParallelSpec = ParallelSpec()
    """The layout of the trainer ranks."""
