"""The shape of a decoder, without torch: its family, its sizes, its attention and its other features."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from rlrun.models.hf_tensor import HfTensor
from rlrun.models.vision import VisionTower

INDEX_SCORES = 1 << 25
"""Largest number of scores of an indexer, in float32 and of all heads, that the trainer has at a time."""
MTP_PROJECTION = "mtp_projection"
"""The name of the projection in the trainer: no other module has it."""
MTP_COPIES = ("embed_tokens.weight", "shared_head.head.weight")
"""Ends of the names of copies of the policy's embedding and head, which some checkpoints store with the
layer. SGLang ignores them, and exports keep them as they were."""


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """gpt-oss's activation: gate · sigmoid(`alpha` · gate) · (up + 1).

    The gate is clamped from above to `limit`, and up to ±`limit`. Gate and up are the even and odd outputs of
    one matrix.
    """

    limit: float
    alpha: float


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """The names of a layer's experts in checkpoints."""

    block: str = "mlp"
    correction: str = "gate.e_score_correction_bias"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    shared: str = "shared_experts"
    """The feed-forward that every token passes through."""


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts of the sparse layers."""

    count: int
    per_token: int
    """Experts that each token is routed to."""
    intermediate: int
    """Inner width of one expert."""
    normalize: bool
    """The routing weights of the chosen experts are scaled to a sum of one."""
    score: str = "softmax"
    """How router logits become weights: `softmax` or `sigmoid`."""
    scale: float = 1.0
    """Multiplies the routing weights."""
    groups: int = 1
    """Number of groups that the experts are divided into; a token only uses its best `chosen_groups`."""
    chosen_groups: int = 1
    shared: int = 0
    """Inner width of the feed-forward that every token passes through; 0: there is none."""
    shared_gate: bool = False
    """That feed-forward's output is multiplied by the sigmoid of one number per token (Qwen3-Next)."""
    correction_bias: bool = False
    """Each expert has a bias that is added to its weight when experts are chosen, but not to the weight that
    multiplies its output (DeepSeek)."""
    layers: frozenset[int] = frozenset()
    """The layers that are sparse; all other layers have a dense feed-forward."""
    clamped_gate: ClampedGate | None = None
    """gpt-oss's activation in place of SwiGLU. Its experts and routers also have biases, and checkpoints
    store all experts of a layer as one tensor."""
    names: ExpertNames = ExpertNames()
    adaptable: bool = True
    """They can have adapters."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: the base frequency, and how it is scaled for longer contexts."""

    theta: float
    type: str = "default"
    """`default`, `linear`, `llama3` or `yarn`."""
    factor: float = 1.0
    """How many times longer the context is than the one the model was first trained on."""
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    """yarn: dimensions that turn more often than this within the original context are kept, and those that
    turn less often than `beta_slow` are slowed down by `factor`."""
    beta_slow: float = 1.0
    truncate: bool = True
    """yarn: the limits of the blend are rounded to whole dimensions."""
    attention_factor: float = 1.0
    """yarn: multiplies cosines and sines."""
    axes: tuple[int, ...] = ()
    """M-RoPE (arXiv:2409.12191): which of a token's positions, in time (0), height (1) and width (2), each
    pair of rotated dimensions turns by. Empty: a token has one position."""
    interleaved: bool = False
    """Neighbouring dimensions form the rotated pairs, as in DeepSeek; otherwise dimensions i and i + H/2
    do."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """DeepSeek's multi-head latent attention: keys and values are projected from one small latent vector."""

    query_rank: int | None
    """Size of the latent vector of queries; None: queries are projected from the hidden state."""
    kv_rank: int
    """Size of the latent vector of keys and values."""
    unrotated_dim: int
    """Dimensions of each head's queries and keys that do not encode a position."""
    rotated_dim: int
    """Dimensions of queries and keys that do; all heads share those of the keys."""
    value_dim: int
    """Dimensions of each head's values."""
    scale_factor: float
    """yarn's `mscale_all_dim`: scores are multiplied by (0.1 · scale_factor · ln factor + 1)²."""


@dataclass(frozen=True, slots=True)
class Indexer:
    """The lightning indexer of DeepSeek's sparse attention (arXiv:2512.02556 § 2.1): a small attention whose
    scores choose the keys that a query of the layer's attention sees.

    The score of a key is the sum over heads of weight · ReLU(query · key). The choice has no gradient, so
    that the indexer is never trained.
    """

    heads: int
    head_dim: int
    """Size of each head's queries, and of the one key that all heads share."""
    top_k: int
    """Number of keys that a query sees; all up to its own if there are fewer."""
    interleaved: bool
    """As `Rope.interleaved`, for the first dimensions of its queries and keys."""
    layers: frozenset[int]
    """The layers that have one; every other layer sees the keys that the last of them before it chose
    (arXiv:2603.12201)."""

    def source(self, layer: int) -> int:
        """Returns the layer whose indexer chooses the keys of a layer."""
        return max(each for each in self.layers if each <= layer)

    def is_shared(self, layer: int, layers: int) -> bool:
        """Returns whether the next one of the model's layers takes the choice of this one."""
        return layer + 1 < layers and layer + 1 not in self.layers


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated DeltaNet (arXiv:2412.06464): linear attention with a recurrent state, in place of some layers'
    attention.

    Each value head has a state `[key_dim, value_dim]`; value heads share the queries and keys of a key head.
    """

    layers: frozenset[int]
    """The layers that have it; all other layers have attention."""
    key_heads: int
    value_heads: int
    key_dim: int
    """Size of each head's queries and keys."""
    value_dim: int
    """Size of each head's values."""
    taps: int
    """Number of tokens that the convolution over queries, keys and values sees, the newest included."""
    by_head: bool
    """The checkpoint stores queries, keys, values and gates in one matrix, head by head (Qwen3-Next)."""

    @property
    def repeats(self) -> int:
        """Number of value heads for each key head."""
        return self.value_heads // self.key_heads

    @property
    def rows(self) -> tuple[int, int, int]:
        """Numbers of queries, keys and values of one key head."""
        return self.key_dim, self.key_dim, self.repeats * self.value_dim

    @property
    def channels(self) -> int:
        """Number of queries, keys and values together, which is that of the convolution's channels."""
        return self.key_heads * sum(self.rows)

    @property
    def values(self) -> int:
        """Number of values of all heads."""
        return self.value_heads * self.value_dim

    @property
    def state_size(self) -> int:
        """Number of elements of one layer's recurrent state."""
        return self.value_heads * self.key_dim * self.value_dim


@dataclass(frozen=True, slots=True)
class MtpLayer:
    """How a family's checkpoints store the layer, and what it reads.

    Example (GLM-4.5-Air): `MtpLayer("model.layers.46.", "hnorm", "enorm", "eh_proj", "shared_head.norm")`

    The layer follows the policy's last one. Position t has the final hidden state of token t and the
    embedding of token t + 1, and predicts token t + 2 with the policy's own head (DeepSeek-V3,
    arXiv:2412.19437 § 2.2):

        hidden state ─▶ norm ─┐
        embedding ────▶ norm ─┴─▶ projection ─▶ decoder layer ─▶ norm ─▶ head
    """

    prefix: str
    """The names of its tensors begin with this."""
    hidden_norm: str
    """Name of the norm of hidden states."""
    token_norm: str
    """Name of the norm of embeddings."""
    projection: str
    """Name of the projection of both."""
    final_norm: str
    """Name of the norm before the head."""
    hidden_first: bool = False
    """The projection's input has the hidden state before the embedding."""
    blind_start: bool = False
    """The embedding counts as zero at the first position of a sequence."""

    def tensors(self, hidden: int, parameter: str) -> Iterator[HfTensor]:
        """Yields the tensors besides those of the decoder layer; `parameter` begins the parameters' names."""
        norms = (self.hidden_norm, "hidden_norm"), (self.token_norm, "token_norm"), (self.final_norm, "norm")
        for name, own in norms:
            yield HfTensor(f"{self.prefix}{name}.weight", (hidden,), f"{parameter}mtp_{own}.weight")
        shape = (hidden, 2 * hidden)
        yield HfTensor(f"{self.prefix}{self.projection}.weight", shape, f"{parameter}{MTP_PROJECTION}.weight")

    def in_checkpoint(self, tensor: HfTensor, layer: str) -> HfTensor:
        """Returns a tensor of the decoder layer, whose name begins with `layer`, as checkpoints name it."""
        return replace(tensor, name=self.prefix + tensor.name.removeprefix(layer))


@dataclass(frozen=True, slots=True)
class Architecture:
    """The shape of a pre-norm decoder with grouped-query attention and a SwiGLU feed-forward.

    Example (Qwen3-0.6B): `Architecture("qwen3", vocab=151936, hidden=1024, layers=28, heads=16, kv_heads=8,
    head_dim=128, intermediate=3072, norm_eps=1e-6, max_positions=40960, tied=True, rope=Rope(1e6),
    qk_norm=True, qkv_bias=False, initializer_range=0.02, dtype="bfloat16")`
    """

    family: str
    """`model_type` of `config.json`."""
    vocab: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    norm_eps: float
    max_positions: int
    tied: bool
    """The embedding and the head share one matrix."""
    rope: Rope
    qk_norm: bool
    """RMSNorm on queries and keys before RoPE (Qwen3)."""
    qkv_bias: bool
    """The projections of queries, keys and values have biases (Qwen2)."""
    initializer_range: float
    dtype: str
    """Precision of the stored weights: float32, bfloat16 or float16."""
    joint_qk_norm: bool = False
    """The norms of queries and keys are each over all heads together, not over one head (MiniMax-M2)."""
    output_bias: bool = False
    """The attention's output projection has a bias."""
    mlp_bias: bool = False
    """The three matrices of the dense feed-forward have biases."""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    indexer: Indexer | None = None
    """Chooses the keys of latent attention; None: every query sees all keys up to its own."""
    delta: DeltaNet | None = None
    output_gate: bool = False
    """Attention's output is multiplied by the sigmoid of a gate, which is projected together with the
    queries (Qwen3-Next)."""
    offset_norms: bool = False
    """Norms multiply by 1 + weight, except those within Gated DeltaNet."""
    rotary_dim: int | None = None
    """Dimensions of each head that RoPE rotates, the first ones; None: all."""
    vision: VisionTower | None = None
    """The vision tower of a multimodal checkpoint; None: its text model does not depend on images."""
    prefix: str = "model."
    """The names of the checkpoint's tensors begin with this, except the head's. Text models within
    multimodal checkpoints have a longer one."""
    sinks: bool = False
    """Each head has an attention sink: the logit of a key that does not exist (gpt-oss)."""
    stored_tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and shapes of the checkpoint's tensors, where transformers computes the model. For all other
    models they follow from the fields above."""
    logit_scale: float = 1.0
    """Multiplies the logits, where transformers computes the model (Cohere, Granite)."""
    windows: tuple[int | None, ...] = ()
    """How many tokens each layer's attention sees, the query's own included; None: all. Empty: every layer
    sees all."""
    mtp_layers: int = 0
    """Number of layers that `config.json` declares behind the last one, which predict further tokens."""
    has_layers_behind: bool = False
    """Checkpoints have layers behind the last one, which predict further tokens."""
    beside_policy: tuple[str, ...] = ()
    """Beginnings of the names of further tensors of checkpoints that are not part of the policy."""
    own_layers: str | None = None
    """The package whose modules `trainer_layers` and `engine_layers` compute what differs from a Llama; None:
    nothing does."""
    mtp: MtpLayer | None = None
    """The layer that predicts the token after the next one, if it is trained (`trainer.mtp_loss`)."""
    scores: bool = False
    """The head gives one number per token in place of logits, as that of a critic or a reward model."""

    @property
    def built_layers(self) -> int:
        """Number of layers that the trainer builds: those of the policy, and the MTP layer behind them."""
        return self.layers + (self.mtp is not None)

    @property
    def outputs(self) -> int:
        """Number of outputs of the head: logits of all tokens, or one score."""
        return 1 if self.scores else self.vocab

    @property
    def rotated_dim(self) -> int:
        """Number of dimensions of each head that RoPE rotates."""
        return self.latent.rotated_dim if self.latent else self.rotary_dim or self.head_dim

    @property
    def attention_layers(self) -> int:
        """Number of layers that have attention, whose keys and values engines cache."""
        return self.layers - (len(self.delta.layers) if self.delta else 0)

    @property
    def cached_heads(self) -> int:
        """Number of heads of keys and values that the native engine caches for each layer: those of
        attention, and the one key of an indexer.
        """
        return self.kv_heads + (self.indexer is not None)

    def state_bytes(self, item: int) -> int:
        """Returns the size of the recurrent state of one sequence in all layers together.

        It is the convolution's last inputs, of `item` bytes each, and the heads' matrices in float32.
        """
        if self.delta is None:
            return 0
        inputs = self.delta.channels * (self.delta.taps - 1)
        return len(self.delta.layers) * (inputs * item + self.delta.state_size * 4)

    @property
    def tower(self) -> VisionTower | None:
        """The vision tower, if it is part of the policy."""
        return self.vision if self.vision and self.vision.loaded else None

    def is_delta(self, layer: int) -> bool:
        """Returns whether a layer has Gated DeltaNet in place of attention."""
        return self.delta is not None and layer in self.delta.layers

    def is_sparse(self, layer: int) -> bool:
        """Returns whether a layer has experts; an MTP layer has them if the model has any."""
        return self.experts is not None and (layer in self.experts.layers or layer >= self.layers)

    def window(self, layer: int) -> int | None:
        """Returns how many tokens a layer's attention sees; None: all."""
        return self.windows[layer] if self.windows else None


def scoring_model(model: Architecture) -> Architecture:
    """Returns a model with a head that scores, in place of those that predict tokens. The new head has one
    row, so it cannot be the embedding.
    """
    return replace(model, tied=False, mtp=None, scores=True)


INEXACT_PARTS: Mapping[str, Callable[[Architecture], bool]] = {
    "a mixture of experts": lambda model: model.experts is not None,
    "Gated DeltaNet": lambda model: model.delta is not None,
    "latent attention": lambda model: model.latent is not None,
    "attention sinks": lambda model: model.sinks,
    "a gate after attention": lambda model: model.output_gate,
    "norms over all heads": lambda model: model.joint_qk_norm,
    "norms that add 1 to their weights": lambda model: model.offset_norms,
    "rotation of a part of each head": lambda model: bool(model.rotary_dim),
    "a vision tower": lambda model: model.tower is not None,
    "heads whose size is not a multiple of 16": lambda model: model.head_dim % 16 != 0,
}
"""What the operators with which `true_on_policy` is kept on CPUs do not compute, by its name. They compute
decoders with dense feed-forwards and grouped-query attention: Llama, Qwen2, Qwen3 and the families that share
their layers."""


def inexact_part(model: Architecture) -> str | None:
    """Returns why the operators of `true_on_policy` do not compute a model; None if they do."""
    names = [name for name, has_part in INEXACT_PARTS.items() if has_part(model)]
    return f"no operators for {names[0]} give the same bits in every batch" if names else None
