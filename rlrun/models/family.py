"""What a model family tells rlrun about itself: the interface of the modules in `rlrun.models.families`.

config.json ─with defaults─▶ read ─▶ Architecture ─▶ names of tensors, trainer, native engine, plan
                               Family ─▶ rules, docs/families.md
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rlrun.models.architecture import Architecture, ExpertNames, MtpLayer
from rlrun.models.vision import TowerFacts

Config = Mapping[str, Any]
"""The contents of a `config.json`."""

DENSE = frozenset({"tensor", "context", "pipeline"})
SPARSE = DENSE | {"expert"}
"""The degrees of `[trainer.parallel]` that may be greater than 1, besides those of data parallelism."""
TENSOR, EXPERTS = frozenset({"tensor"}), frozenset({"expert"})


@dataclass(frozen=True, slots=True)
class Support:
    """What rlrun offers for a family, besides data parallelism, which every family has.

    Example: `Support("Qwen3-MoE", layouts=SPARSE)`
    """

    models: str
    """The name of its models, for the documentation."""
    layouts: frozenset[str] = frozenset()
    """The degrees of `[trainer.parallel]` that may be greater than 1, besides `fsdp` and `replicate`."""
    adapters: bool = True
    """`[trainer.lora]`."""
    precision: bool = True
    """`trainer.precision`."""
    native_engine: bool = False
    sglang: bool = False
    """rlrun's tests run a job or an engine of the family on the real SGLang server. SGLang has far more
    families."""
    images: bool = False
    """The model is trained on images, and not on text only."""
    windows: bool = False
    """Some layers' attention sees a window of each sequence."""
    recurrent: bool = False
    """Some layers have Gated DeltaNet."""

    @property
    def prefixes(self) -> bool:
        """`trainer.share_prefixes`: it needs the trainer's own layers, whose attention sees all tokens."""
        return "context" in self.layouts and not self.windows and not self.recurrent


@dataclass(frozen=True, slots=True)
class TextModel:
    """The text model within a multimodal checkpoint."""

    model_type: str
    """The family of the text model, whose defaults and layers it has."""
    prefix: str = "model.language_model."
    """The names of its tensors begin with this, except the head's."""
    may_be_flat: bool = False
    """`config.json` may have the text model's keys beside `vision_config` (published Qwen2.5-VL)."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What is known about a family's models in SGLang 0.5.23."""

    adapters: bool = False
    """Servers give adapters to its matrices of attention and feed-forward by their Hugging Face names."""
    layout: bool = False
    """How servers hold its tensors is known. For other families only norms are compared that every rank holds
    as a whole."""
    on_policy_target: bool = False
    """The trainer has layers that round as `rl_on_policy_target` does."""
    undeclared_mtp_layers: int = 0
    """MTP layers that checkpoints have and `config.json` does not mention."""
    eagle_tokens: int = 4
    """Tokens that servers verify at a time with `mtp`, `eagle` or `eagle3` unless told
    (arg_groups/speculative_hook.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One `model_type` of `config.json`, and everything that rlrun knows about it.

    Example: `Family(model_type="qwen3", support=Support("Qwen3", DENSE), defaults={"head_dim": 128}, read=…)`
    """

    model_type: str
    support: Support | None = None
    """Its row in docs/families.md; None: no checkpoint of this type is trained."""
    defaults: Config = field(default_factory=dict)
    """Defaults of transformers' configuration class, where they differ from `config_defaults.COMMON`."""
    default_rope: Config | None = None
    """`rope_scaling` of a `config.json` that says nothing about RoPE's scaling."""
    read: Callable[[Config], Architecture] | None = None
    """Returns the architecture of a `config.json` with defaults. Starts from `decoder_config.decoder`, which
    reads a Llama. None: the type is a multimodal checkpoint's, or only converted."""
    refuse: Callable[[Config], None] | None = None
    """Raises ValueError for a `config.json` that describes other layers than those that are computed."""
    trains_attention_bias: bool = False
    """The trainer computes `attention_bias = true`."""
    native_biases: bool = True
    """The native engine computes `attention_bias` and `mlp_bias`."""
    own_layers: str | None = None
    """A package whose modules `trainer_layers` and `engine_layers` compute what differs from a Llama, in the
    trainer and in the native engine."""

    text: TextModel | None = None
    """The text model, if checkpoints of this type are multimodal."""
    tower: TowerFacts | None = None
    """How `config.json` describes the vision tower, if the tower can be part of the policy."""

    expert_bias: bool = False
    """Checkpoints have a bias by which experts are chosen."""
    expert_names: ExpertNames = field(default_factory=ExpertNames)
    adapts_experts: bool = True
    """`[trainer.lora]` may adapt experts."""
    mtp: Callable[[int], MtpLayer] | None = None
    """Returns the MTP layer of a model with this number of layers; None: the trainer does not compute it."""
    has_layers_behind: bool = False
    """Checkpoints have layers behind the last one, which predict further tokens."""
    beside_policy: tuple[str, ...] = ()
    """Beginnings of the names of further tensors that are exported unchanged."""

    server: ServerFacts = ServerFacts()
    torchtitan_package: str | None = None
    """torchtitan's package with an adapter that `rlrun convert` uses in place of the names here. The one of
    Qwen3.5 needs the package `fla-core`."""
    pairs_side_by_side: bool = False
    """torchtitan's own checkpoints have the members of a rotated pair side by side."""
    unquantised_because: str | None = None
    """Why `rlrun convert --quantize` refuses the family."""

    @property
    def recurrent(self) -> bool:
        """Whether some layers have Gated DeltaNet."""
        return self.support is not None and self.support.recurrent
