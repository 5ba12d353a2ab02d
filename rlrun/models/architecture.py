"""The shape of a decoder: what its family, sizes and features are; needs no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: base frequency and how it is stretched."""

    theta: float
    type: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192
    beta_fast: float = 32.0
    """yarn: wavelengths that turn more often than this in the original length are kept, and those that turn
    less often than `beta_slow` are stretched by `factor`."""
    beta_slow: float = 1.0
    truncate: bool = True
    """yarn: these limits are rounded to whole dimensions."""
    attention_factor: float = 1.0
    """yarn: cosines and sines are multiplied by it."""
    interleaved: bool = False
    """Neighbouring dimensions are rotated, not halves (DeepSeek)."""


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Keys and values from a latent vector, queries too where `query_rank` is given (DeepSeek's MLA)."""

    query_rank: int | None
    rank: int
    """Of keys and values."""
    plain: int
    """Dimensions of a head's queries and keys without position."""
    rotated: int
    """Those with one; the keys of all heads share it."""
    value: int
    """Dimensions of a head's values."""
    scale_factor: float
    """yarn: `mscale_all_dim`; attention is scaled by (0.1 · this · ln factor + 1)²."""


@dataclass(frozen=True, slots=True)
class ClampedGate:
    """gpt-oss's activation: gate · sigmoid(`alpha` · gate) · (up + 1), the gate held below `limit` and up
    within it on both sides. Gate and up are the even and odd outputs of one matrix.
    """

    limit: float
    alpha: float


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture of experts in a sparse layer."""

    count: int
    per_token: int
    intermediate: int
    normalize: bool
    """Routing weights of the chosen experts sum to one."""
    score: str = "softmax"
    """How router logits become weights: softmax or sigmoid."""
    scale: float = 1.0
    """The weights are multiplied by it."""
    groups: int = 1
    """Experts lie in so many groups, of which only the best `chosen_groups` take part for a token."""
    chosen_groups: int = 1
    shared: int = 0
    """Width of the feed-forward that every token passes through."""
    correction_bias: bool = False
    """A fixed bias by expert decides with the weights which ones are chosen."""
    layers: frozenset[int] = frozenset()
    """Which layers are sparse; the others have a dense feed-forward."""
    clamped: ClampedGate | None = None
    """Instead of SwiGLU; experts and router then have biases, and a layer's experts are stored as one."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A pre-norm decoder with grouped-query attention and SwiGLU."""

    family: str
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
    """Embedding and head share one matrix."""
    rope: Rope
    qk_norm: bool
    """RMSNorm on queries and keys before RoPE (Qwen3)."""
    qkv_bias: bool
    """Queries, keys and values have biases (Qwen2)."""
    initializer_range: float
    dtype: str
    """Precision of the stored weights: float32, bfloat16 or float16."""
    experts: Experts | None = None
    latent: LatentAttention | None = None
    sinks: bool = False
    """Each head has a logit of a key that is not there, and the output projection a bias (gpt-oss)."""
    stored: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and shapes of the checkpoint's tensors, where transformers computes the model (`foreign`); of
    others they follow from the rest.
    """
    windows: tuple[int | None, ...] = ()
    """How many tokens each layer's attention sees, itself included; None: all. Empty: all in every layer."""

    @property
    def rotated(self) -> int:
        """Dimensions of a head that are rotated by position."""
        return self.latent.rotated if self.latent else self.head_dim

    def window(self, layer: int) -> int | None:
        """How many tokens a layer's attention sees; None: all."""
        return self.windows[layer] if self.windows else None
