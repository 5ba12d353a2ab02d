"""Reads models that transformers computes (`model.implementation = "transformers"`), without torch.

Their sizes come from the usual keys of `config.json`, and their tensors from the headers of the files.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlrun.models.architecture import Architecture, Rope
from rlrun.models.attention_config import DELTA_FAMILIES
from rlrun.models.checked_names import file_inside
from rlrun.models.config_defaults import text_config
from rlrun.models.config_json import read_architecture, read_config, weight_dtype

_LAYER_TYPES = {"full_attention", "sliding_attention"}
_DERIVED_SUFFIX = ".rotary_emb.inv_freq"
_MAX_HEADER_BYTES = 100_000_000
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "logit_scale": (None, 1.0),
    "logits_scaling": (None, 1.0),
}
"""Transformations of logits that are not computed here, with the values that have no effect."""


def read_transformers_model(folder: Path) -> Architecture:
    """Returns the architecture of a model folder with weights.

    Raises ValueError for layers through which packed documents would see each other, and for missing sizes.
    """
    config = read_config(folder)
    try:
        _refuse_unsupported(config)
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        tensors = tuple(_tensor_shapes(folder))
        has_head = any(name == "lm_head.weight" for name, _ in tensors)
        return Architecture(
            family=config["model_type"],
            vocab=config["vocab_size"],
            hidden=hidden,
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            head_dim=config.get("head_dim") or hidden // heads,
            intermediate=config["intermediate_size"],
            norm_eps=config.get("rms_norm_eps") or 1e-5,
            max_positions=config["max_position_embeddings"],
            tied=config.get("tie_word_embeddings", not has_head),
            rope=Rope(10000.0),
            qk_norm=False,
            qkv_bias=False,
            initializer_range=config.get("initializer_range", 0.02),
            dtype=weight_dtype(config),
            stored_tensors=tensors,
        )
    except KeyError as missing:
        raise ValueError(
            f"{folder / 'config.json'} has no {missing}, which models computed by transformers must have"
        ) from None
    except (TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"{folder / 'config.json'} has a value of the wrong type: {error}") from None


def read_model(folder: Path, implementation: str) -> Architecture:
    """Returns the architecture of a model folder, as `model.implementation` has it computed."""
    return read_transformers_model(folder) if implementation == "transformers" else read_architecture(folder)


def _refuse_unsupported(config: Mapping[str, Any]) -> None:
    family = config.get("model_type")
    if text_config(config).get("model_type") in DELTA_FAMILIES:
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
    for key, neutral in _NEUTRAL.items():
        if config.get(key) not in neutral:
            raise ValueError(f"{key} = {config[key]} in config.json is not supported for {family}")


def _tensor_shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the name and shape of every tensor in the folder's safetensors files.

    The files are only checked as far as this needs; loading the weights checks them thoroughly.
    """
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with file_inside(folder, path.name).open("rb") as file:
                header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), _MAX_HEADER_BYTES)))
            shapes = {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
        except (json.JSONDecodeError, UnicodeDecodeError, LookupError, AttributeError) as error:
            raise ValueError(f"{path} is not a safetensors file: {error}") from None
        yield from ((name, shape) for name, shape in shapes.items() if not name.endswith(_DERIVED_SUFFIX))
