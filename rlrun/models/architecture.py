"""The shape of a decoder, without torch: its family, its sizes and its features."""

from dataclasses import dataclass


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
class ClampedGate:
    """gpt-oss's activation: gate · sigmoid(`alpha` · gate) · (up + 1).

    The gate is clamped from above to `limit`, and up to ±`limit`. Gate and up are the even and odd outputs of
    one matrix.
    """

    limit: float
    alpha: float


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
    output_bias: bool = False
    """The attention's output projection has a bias."""
    mlp_bias: bool = False
    """The three matrices of the dense feed-forward have biases."""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    delta: DeltaNet | None = None
    output_gate: bool = False
    """Attention's output is multiplied by the sigmoid of a gate, which is projected together with the
    queries (Qwen3-Next)."""
    offset_norms: bool = False
    """Norms multiply by 1 + weight, except those within Gated DeltaNet."""
    rotary_dim: int | None = None
    """Dimensions of each head that RoPE rotates, the first ones; None: all."""
    prefix: str = "model."
    """The names of the checkpoint's tensors begin with this, except the head's. Text models within
    multimodal checkpoints have a longer one."""
    sinks: bool = False
    """Each head has an attention sink: the logit of a key that does not exist (gpt-oss)."""
    stored_tensors: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and shapes of the checkpoint's tensors, where transformers computes the model. For all other
    models they follow from the fields above."""
    windows: tuple[int | None, ...] = ()
    """How many tokens each layer's attention sees, the query's own included; None: all. Empty: every layer
    sees all."""

    @property
    def rotated_dim(self) -> int:
        """Number of dimensions of each head that RoPE rotates."""
        return self.latent.rotated_dim if self.latent else self.rotary_dim or self.head_dim

    @property
    def attention_layers(self) -> int:
        """Number of layers that have attention, whose keys and values engines cache."""
        return self.layers - (len(self.delta.layers) if self.delta else 0)

    def state_bytes(self, item: int) -> int:
        """Returns the size of the recurrent state of one sequence in all layers together.

        It is the convolution's last inputs, of `item` bytes each, and the heads' matrices in float32.
        """
        if self.delta is None:
            return 0
        inputs = self.delta.channels * (self.delta.taps - 1)
        return len(self.delta.layers) * (inputs * item + self.delta.state_size * 4)

    def is_delta(self, layer: int) -> bool:
        """Returns whether a layer has Gated DeltaNet in place of attention."""
        return self.delta is not None and layer in self.delta.layers

    def window(self, layer: int) -> int | None:
        """Returns how many tokens a layer's attention sees; None: all."""
        return self.windows[layer] if self.windows else None
