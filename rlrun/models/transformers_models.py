"""Reads models that transformers computes (`model.implementation = "transformers"`), without torch.

Their sizes come from the usual keys of `config.json`, and their tensors from the headers of the files.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlrun.models.architecture import Architecture, Experts, Rope
from rlrun.models.checked_values import check_numbers
from rlrun.models.config_defaults import with_family_defaults
from rlrun.models.config_json import read_architecture, read_config
from rlrun.models.decoder_config import weight_dtype
from rlrun.models.families.table import family_of
from rlrun.models.hf_tensor import (
    HEADS,
    in_order,
    is_of_text_model,
    text_prefix,
    transformers_tensor,
)
from rlrun.models.json_files import tensor_shapes

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_KEYS = ".self_attn.k_proj.weight"
_DERIVED_SUFFIX = ".rotary_emb.inv_freq"
_PER_TOKEN = ("num_experts_per_tok", "moe_topk", "top_k_experts")
"""Keys that different families use for the number of experts that a token is routed to."""
_REFUSED = ("attn_logit_softcapping", "final_logit_softcapping", "use_bidirectional_attention")
"""Keys that change the model in a way that is not computed here: caps of logits, and attention to later
tokens."""


def read_transformers_model(folder: Path) -> Architecture:
    """Returns the architecture of a model folder with weights.

    Raises ValueError for layers through which packed documents would see each other, and for missing sizes.
    """
    config = read_config(folder)
    try:
        text = with_family_defaults(config)
        check_numbers(text, f"{folder / 'config.json'}")
        refuse_unsupported(text)
        heads, hidden = text["num_attention_heads"], text["hidden_size"]
        kv_heads = text.get("num_key_value_heads") or heads
        tensors = dict(_tensor_shapes(folder))
        prefix = text_prefix(tensors)
        own = {
            name: tensors[name] for name in sorted(tensors, key=in_order) if is_of_text_model(name, prefix)
        }
        tied = text.get("tie_word_embeddings", not tensors.keys() & set(HEADS))
        return Architecture(
            family=config["model_type"],
            vocab=text["vocab_size"],
            hidden=hidden,
            layers=text["num_hidden_layers"],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=_widest_head(own, kv_heads) or text.get("head_dim") or hidden // heads,
            intermediate=text["intermediate_size"],
            norm_eps=text.get("rms_norm_eps") or 1e-5,
            max_positions=text["max_position_embeddings"],
            tied=tied,
            rope=Rope(10000.0),
            qk_norm=False,
            qkv_bias=False,
            initializer_range=text.get("initializer_range", 0.02),
            dtype=weight_dtype(text),
            prefix=prefix,
            experts=_read_experts(text, own, prefix),
            stored_tensors=tuple((name, own[name]) for name in own if not (tied and name in HEADS)),
            logit_scale=(text.get("logit_scale") or 1.0) / (text.get("logits_scaling") or 1.0),
        )
    except KeyError as missing:
        raise ValueError(
            f"{folder / 'config.json'} has no {missing}, which models computed by transformers must have"
        ) from None
    except (TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(f"{folder / 'config.json'} has a value of the wrong type: {error}") from None


def read_model(folder: Path, implementation: str) -> Architecture:
    """Returns the architecture of a model folder, as `model.implementation` has it computed."""
    return (read_transformers_model if implementation == "transformers" else read_architecture)(folder)


def refuse_unsupported(config: Mapping[str, Any]) -> None:
    """Raises ValueError for a config, of a text model, that asks for what is not computed here."""
    family = config.get("model_type")
    if family_of(config).recurrent:
        raise ValueError(
            f"{family} has Gated DeltaNet, in which transformers lets packed documents see each other: "
            "remove model.implementation, because the trainer's own layers compute this family"
        )
    if not _LAYER_TYPES.issuperset(config.get("layer_types") or ()):
        unsupported = sorted(set(config["layer_types"]) - _LAYER_TYPES)
        raise ValueError(
            f"{family} has layers of the type {', '.join(unsupported)}, through which packed documents would "
            "see each other; choose another model"
        )
    for key in _REFUSED:
        if config.get(key):
            raise ValueError(f"{key} = {config[key]} in config.json is not supported for {family}")


def _read_experts(
    config: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], prefix: str
) -> Experts | None:
    """Returns the sizes of the experts, as the tensors have them; None for a dense model."""
    matrices = [transformers_tensor(name, shape, prefix) for name, shape in tensors.items()]
    matrices = [matrix for matrix in matrices if matrix.expert is not None]
    if not matrices:
        return None
    per_token = next(config[key] for key in _PER_TOKEN if isinstance(config.get(key), int))
    return Experts(
        count=max(matrix.expert or 0 for matrix in matrices) + 1,
        per_token=per_token,
        intermediate=next(matrix.shape[0] for matrix in matrices if matrix.parameter.endswith("w1_EFD")),
        normalize=True,
        layers=frozenset(int(matrix.parameter.split(".")[2]) for matrix in matrices),
    )


def _widest_head(tensors: Mapping[str, tuple[int, ...]], kv_heads: int) -> int:
    """Returns the largest dimension of a head, which may differ by layer (Gemma 4); 0: no matrix of keys by
    itself tells.
    """
    return max((shape[0] // kv_heads for name, shape in tensors.items() if name.endswith(_KEYS)), default=0)


def _tensor_shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name and shape of every tensor in the folder's safetensors files."""
    for path in sorted(folder.glob("*.safetensors")):
        shapes = tensor_shapes(path)
        yield from ((name, shape) for name, shape in shapes if not name.endswith(_DERIVED_SUFFIX))
