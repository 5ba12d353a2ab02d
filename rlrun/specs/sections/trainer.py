"""`[trainer]`: optimisation and the parallel layout."""

from typing import Annotated, Literal

from pydantic import Field

from rlrun.models.adapters import LoraShape
from rlrun.models.low_precision import (
    DEFAULT_INT4_GROUP,
    Float8Recipe,
    Int4Group,
    LowPrecision,
    PrecisionName,
)
from rlrun.specs.sections.engine import Dtype
from rlrun.specs.sections.optimizer import OptimizerSpec
from rlrun.specs.sections.section import Section, derived

PipelineSchedule = Literal[
    "1F1B", "GPipe", "Interleaved1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"
]
ONE_STAGE_SCHEDULES = ("1F1B", "GPipe")
TokenDispatcher = Literal["standard", "deepep"]


class ParallelSpec(Section):
    """Degrees of parallelism. The product of all degrees except `expert` is the number of trainer ranks."""

    fsdp: int = Field(default=1, ge=1)
    """Number of ranks that shard parameters, gradients and optimizer state."""
    min_fsdp: int | None = Field(default=None, ge=1)
    """Elastic ranks: a launch takes the largest `fsdp` down to this for which there are devices, and that
    divides the batch. With a resume, the checkpoint is loaded into that layout, so that a run continues on
    fewer or more devices; batch and learning rate stay. None: a launch needs `fsdp`."""
    replicate: int = Field(default=1, ge=1)
    """Number of replicas of the sharded group (HSDP)."""
    reshard_after_forward: Literal["default", "always", "never"] = "default"
    """When FSDP frees the gathered parameters of a layer. `always`: after its forward pass, and the backward
    pass gathers them again. `never`: only after its backward pass, which takes more memory and less
    communication. `default`: `never` with a pipeline; otherwise `always`, except for the head."""
    tensor: int = Field(default=1, ge=1)
    """Number of ranks that split each layer's matrices. It must divide the number of attention heads."""
    sequence_parallel: bool = True
    """Tensor-parallel ranks also split the tokens of norms and the residual stream, between the matrices.
    This saves activation memory."""
    context: int = Field(default=1, ge=1)
    """Number of ranks that split the tokens of a micro-batch, including attention. The token budget of a
    micro-batch grows in proportion."""
    context_balance: Literal["head_tail", "none"] = "head_tail"
    """How tokens are split over context ranks. `head_tail`: each rank gets an early and a late piece, so that
    all ranks do the same work in causal attention. `none`: each rank gets one piece, in order."""
    pipeline: int = Field(default=1, ge=1)
    """Number of ranks that hold different layers."""
    pipeline_schedule: PipelineSchedule = "1F1B"
    """Order of the forward and backward passes of a pipeline. `1F1B` and `GPipe` give each rank one stage,
    the other schedules two."""
    pipeline_layers: tuple[Annotated[int, Field(ge=1)], ...] | None = None
    """Number of layers of each pipeline stage, in order. Give the last stage fewer layers if the head is
    large: its work counts too. None: as equal as possible; of stages that get a layer fewer, the last is the
    first."""
    expert: int = Field(default=1, ge=1)
    """Number of ranks that divide the experts of a layer among them. It must divide fsdp × context × tensor,
    whose ranks it uses."""
    token_dispatcher: TokenDispatcher = "standard"
    """How tokens reach the ranks of their experts, and come back. `standard`: all-to-all of NCCL. `deepep`:
    the kernels of DeepEP 2 (package deep_ep), which send a token once to each rank, however many of its
    experts are there. They need GPUs from Hopper on, and bfloat16."""
    async_tensor: bool = False
    """Tensor-parallel ranks exchange tokens while they multiply (torch's symmetric memory): the gathers and
    reductions of dense layers are cut into pieces that overlap with the matrix products. It needs GPUs of one
    node that reach each other's memory, and `sequence_parallel`."""
    symmetric_memory: bool = False
    """FSDP gathers parameters and reduces gradients in NCCL's symmetric memory, which occupies fewer of the
    GPU's multiprocessors. It needs GPUs from Hopper on."""

    @property
    def world_size(self) -> int:
        """Number of trainer ranks."""
        return self.data_degree * self.context * self.tensor * self.pipeline

    @property
    def data_degree(self) -> int:
        """Number of groups of ranks that train on different samples."""
        return self.fsdp * self.replicate

    @property
    def stages(self) -> int:
        """Number of pieces that the layers are cut into."""
        return self.pipeline * (1 if self.pipeline_schedule in ONE_STAGE_SCHEDULES else 2)

    @property
    def keeps_gathered(self) -> bool:
        """Whether layers stay gathered between their forward and backward passes."""
        policy = self.reshard_after_forward
        return policy == "never" or (policy == "default" and self.pipeline > 1)


DEGREE_OF = {
    "sequence_parallel": "tensor",
    "async_tensor": "tensor",
    "context_balance": "context",
    "pipeline_schedule": "pipeline",
    "pipeline_layers": "pipeline",
    "token_dispatcher": "expert",
}
"""The degree that must be greater than 1 for a setting to have an effect."""


RoutingReplay = Literal["off", "trainer", "engine"]


class MoeSpec(Section):
    """How the trainer routes tokens to experts, for mixture-of-experts models."""

    routing_replay: RoutingReplay = "off"
    """Which experts process each token in training. `off`: the trainer's routers choose again in each pass.
    `trainer`: the experts that the pass over the old log-probs chose (the routing replay of GSPO). `engine`:
    the experts that the engine chose."""
    router_dtype: Literal["float32", "trainer"] = "float32"
    """Precision of router logits. `trainer`: the precision of `trainer.dtype`, as in engines."""
    balancing: Literal["off", "bias"] = "off"
    """How the load of experts is balanced. `bias`: a bias per expert is added to the scores when experts are
    chosen, and is adjusted after every optimizer step (auxiliary-loss-free balancing, arXiv:2408.15664)."""
    balancing_rate: float = Field(default=1e-3, gt=0)
    """How much the bias changes per optimizer step."""
    balancing_export: bool = True
    """Send the bias to engines and write it into exports, for families whose checkpoints contain one
    (DeepSeek-V3). false: they keep the bias of the initial model."""


class LoraSpec(Section):
    """Low-rank adapters (LoRA, arXiv:2106.09685), which are trained instead of the model's own parameters.

    Without this table the whole model is trained.
    """

    rank: int = Field(default=16, ge=1)
    """Inner size of each adapter. A higher rank learns more and takes more memory."""
    alpha: float = Field(default=32, gt=0)
    """An adapter's product is multiplied by alpha / rank."""
    targets: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Hugging Face names of the matrices that get an adapter, such as `q_proj` and `down_proj`. None: all
    matrices of attention and feed-forward, without those of experts. In a model with experts, attention has
    adapters, and experts too if `experts.gate_up_proj` or `experts.down_proj` are named."""
    rslora: bool = False
    """Multiply by alpha / √rank instead (rsLoRA, arXiv:2312.03732)."""
    base: Literal["nf4", "int8"] | None = None
    """Hold the frozen matrices of the layers in 4 or 8 bits (QLoRA, arXiv:2305.14314). `nf4` takes 4.5 bits
    per value, `int8` 8.5. Engines get the same rounded values. None: in the precision of `trainer.dtype`."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Only 0 is supported: dropout would give a token different log-probs in each pass, so that the ratio to
    the old policy would be noise."""

    @property
    def shape(self) -> LoraShape:
        """The settings that the adapters have in common."""
        return LoraShape(self.rank, self.alpha, self.targets or (), self.rslora, self.base)


class TrainerSpec(OptimizerSpec):
    """The length of the run, the optimizer steps, and how the trainer computes them."""

    steps: int | None = Field(default=None, ge=1)
    """Number of rollout steps (SFT: optimizer steps) to run. Set exactly one of `steps` and `epochs`."""
    epochs: int | None = Field(default=None, ge=1)
    """Number of passes over the dataset, each ⌊rows / batch⌋ steps."""
    global_batch_size: int = derived(ge=1)
    """G: number of samples per optimizer step. Unset: all samples of a rollout step, or P·n /
    `optimizer_steps`."""
    optimizer_steps: int = derived(ge=1)
    """S: number of optimizer steps per rollout step. Unset: P·n / G."""
    max_tokens_per_rank: int = Field(default=8192, ge=1)
    """Token budget of a packed micro-batch; `parallel.context` multiplies it. A longer sample gets a
    micro-batch to itself. Lower it where the GPU runs out of memory."""
    max_logprob_tokens_per_rank: int | None = Field(default=None, ge=1)
    """Token budget of a micro-batch in passes without gradients, which need less memory: old log-probs,
    those of reference and teacher, and values of the critic. None: `max_tokens_per_rank`."""
    micro_batch_size: int | None = Field(default=None, ge=1)
    """Number of samples per micro-batch, whatever their length. None: as many as fit into the token
    budget."""
    share_prefixes: bool = derived()
    """Compute a prefix that sequences of a micro-batch share once: the prompt of a group's samples, and what
    the conversations of an agent have in common. It has to be 32 tokens long, and a tenth of its sequence.
    Losses and gradients stay the same up to rounding. `max_tokens_per_rank` then counts its tokens once, and
    groups stay in one micro-batch where ranks stay equally busy. It holds for policy, reference, teacher and
    critic. Unset: where several samples share a prompt of that length, and the model and the other settings
    allow it; not on GPUs (docs/shared-prefixes.md)."""
    dtype: Dtype = derived()
    """Precision of matrix products and activations. Parameters, gradients and optimizer state are always
    float32. Unset: `bfloat16` on GPUs and on processors with instructions for it (`avx512_bf16` or `amx_bf16`
    in `lscpu`), else `float32`, because such a processor computes a training step in bfloat16 about six times
    slower. `precision` needs `bfloat16` anywhere. A resumed run keeps the precision that it began with."""
    precision: PrecisionName | None = None
    """Multiply the matrices of the layers in a lower precision than `dtype`, which has to be `bfloat16`, for
    policy, reference and critic. Embeddings, head, norms, routers and attention keep `dtype`, and parameters
    are float32 as always. `float8` needs GPUs of compute capability 8.9 (Ada, Hopper), `mxfp8` and `nvfp4`
    need 10.0 (Blackwell). On a CPU float8 and mxfp8 run too, slowly. They need torchao
    (`rlrun[low-precision]`). `int4_qat` rounds matrices to four-bit integers before they multiply in `dtype`,
    so that engines can hold them in INT4 (quantisation-aware training): those of routed experts, or in a
    model without them those of all layers. Engines and exports get the rounded numbers, and a critic is not
    rounded. None: `dtype` (docs/low-precision.md)."""
    int4_group: Int4Group = DEFAULT_INT4_GROUP
    """How many neighbours in a row of a matrix share a scale in `precision = "int4_qat"`; the `group_size` of
    an INT4 folder that engines start from."""
    float8_recipe: Float8Recipe = "rowwise"
    """How `precision = "float8"` scales numbers. `rowwise`: a scale per row of each factor.
    `rowwise_with_gw_hp`: the same, with the gradients of weights in bfloat16, which is more accurate.
    `blockwise`: a scale per 128 × 128 block of a matrix, and per 128 neighbours of an activation, as in FP8
    checkpoints of DeepSeek-V3 and in FP8 engines; needs compute capability 9.0."""
    head_dtype: Literal["model", "float32"] = "model"
    """Precision of logits, in the trainer and in the job's engines. `model`: the precision of `trainer.dtype`
    and `engine.dtype`. `float32`: the head multiplies in float32, with weights whose precision stays the
    same, so that the log-probs of trainer and engines agree better (MiniMax-M1, arXiv:2506.13585). It helps
    models with large logits, and its products are slower (docs/engines.md has both sides' figures)."""
    freeze: tuple[str, ...] = ()
    """Patterns of Hugging Face names of the parameters that are not trained, for instance
    `model.embed_tokens.*`."""
    vision_tower: Literal["none", "frozen", "trained"] = derived()
    """What is done with the vision tower of a multimodal checkpoint (docs/vision.md). `frozen`: it computes
    the images of the samples and stays as it is. `trained`: it is trained with the text model, and engines
    get its weights too. `none`: no sample has images, and the tower is only copied to exports. Unset:
    `frozen` for Qwen2.5-VL and Qwen3-VL, else `none`."""
    mtp_loss: float = Field(default=0.0, ge=0)
    """Weight of the loss of the MTP layer, which predicts the token after the next one and with which SGLang
    servers speculate (`engine.speculative.algorithm = "mtp"`): the layer is trained beside the policy, on the
    same tokens (docs/families.md). The policy does not depend on it: hidden states, embedding and head count
    as constants, and its gradients are clipped by themselves. 0: the layer is exported as it was."""
    reduction: Literal["per_sample_mean", "per_token", "dr_grpo"] = "per_sample_mean"
    """How the losses of tokens are reduced to one number (docs/algorithms.md)."""
    old_log_probs: Literal["trainer", "rollout", "interpolated"] = derived()
    """The log-probs in the denominator of the ratio. `trainer`: the trainer computes them (it skips the pass
    where a step has one optimizer step, because the ratio is 1). `rollout`: the engine's. `interpolated`: no
    pass; those of the policy before the update are estimated between the engine's and the trained policy's,
    by the version of each token. Unset: the engine's where samples may come from older weights
    (`rollout.mode = "async"`, `rollout.partial`) and the algorithm has no correction, else the trainer's."""
    non_finite: Literal["stop", "skip"] = "stop"
    """What happens when a loss or gradient is not finite. `stop`: the job ends. `skip`: the optimizer step is
    skipped and counted."""
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    """Which activations the backward pass recomputes instead of storing them, to save memory. `selective`:
    all except those of attention and of every second matrix product. `full`: those of whole layers."""
    flash_attention: Literal["FA2", "FA3"] = "FA2"
    """The kernel of attention in bfloat16 on GPUs. `FA2`: torch's own. `FA3`: the package flash_attn_3, which
    has to be installed on the trainer's nodes; it is faster on Hopper GPUs, and runs on no others."""
    compile: bool = False
    """Compile the layers with torch.compile (inductor) at their first use, except attention and experts. It
    is faster on GPUs, after a minute or more of compilation."""
    offload: Literal["none", "optimizer", "all"] = "none"
    """What is held in host memory instead of GPU memory, for policy and critic. `optimizer`: the optimizer
    state, which is moved to the GPU a few parameters at a time during the optimizer step. `all`: also
    parameters and gradients; layers are fetched when they are computed, and the optimizer step runs on the
    host."""
    logits_chunk: int = Field(default=1024, ge=1)
    """Number of tokens whose float32 logits exist at the same time. Lower it to save memory with large
    vocabularies."""
    kept_logits: int = Field(default=64, ge=0)
    """MiB of bfloat16 logits that are kept from the forward pass to the backward pass; the others are
    computed again. Raise it where `rlrun plan` shows free memory: results stay the same bit for bit."""
    lora: LoraSpec | None = None
    """Train low-rank adapters instead of the whole model. None: train the whole model."""
    moe: MoeSpec = MoeSpec()
    """Settings for mixture-of-experts models."""
    parallel: ParallelSpec = ParallelSpec()
    """The parallel layout of the trainer ranks."""

    @property
    def lora_shape(self) -> LoraShape | None:
        """The settings of the adapters; None: the whole model is trained."""
        return None if self.lora is None else self.lora.shape

    @property
    def rounded_group(self) -> int | None:
        """How many numbers of a rounded matrix share a scale; None: matrices are not rounded."""
        return self.int4_group if self.precision == "int4_qat" else None

    @property
    def low_precision(self) -> LowPrecision | None:
        """`precision` with its recipe."""
        return LowPrecision(self.precision, self.float8_recipe, self.int4_group) if self.precision else None
