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
        return self.latent.rotated_dim if self.latent else self.head_dim

    def window(self, layer: int) -> int | None:
        """Returns how many tokens a layer's attention sees; None: all."""
        return self.windows[layer] if self.windows else None
