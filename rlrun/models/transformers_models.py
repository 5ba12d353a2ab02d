"""Models that transformers computes itself: sizes from the usual keys of `config.json`, tensors from the
files' headers; needs no torch.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlrun.models.architecture import Architecture, Rope
from rlrun.models.checked_names import inside
from rlrun.models.config_json import read_architecture, read_config, weight_dtype

_KINDS = {"full_attention", "sliding_attention"}
_DERIVED = ".rotary_emb.inv_freq"
_MAX_HEADER = 100_000_000
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    "attn_logit_softcapping": (None,),
    "final_logit_softcapping": (None,),
    "logit_scale": (None, 1.0),
    "logits_scaling": (None, 1.0),
}
"""What is done to logits, and left out here, by the values that do nothing."""


def read_foreign(folder: Path) -> Architecture:
    """The architecture of a model folder with weights. ValueError for what packed documents would leak
    through, and where sizes are missing.
    """
    config = read_config(folder)
    try:
        _refuse(config)
        heads, hidden = config["num_attention_heads"], config["hidden_size"]
        stored = tuple(_shapes(folder))
        has_head = any(name == "lm_head.weight" for name, _ in stored)
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
            stored=stored,
        )
    except KeyError as missing:
        raise ValueError(
            f"{folder / 'config.json'} has no {missing}, which models computed by transformers must have"
        ) from None
    except (TypeError, AttributeError, ZeroDivisionError) as error:
        raise ValueError(f"{folder / 'config.json'} has a value of a wrong kind: {error}") from None


def read_model(folder: Path, implementation: str) -> Architecture:
    """The architecture of a model folder, by `model.implementation`."""
    return read_foreign(folder) if implementation == "transformers" else read_architecture(folder)


def _refuse(config: Mapping[str, Any]) -> None:
    family = config.get("model_type")
    if not _KINDS.issuperset(config.get("layer_types") or ()):
        others = sorted(set(config["layer_types"]) - _KINDS)
        raise ValueError(
            f"{family} has layers of {', '.join(others)}, which packed documents would leak through"
        )
    for key, neutral in _NEUTRAL.items():
        if config.get(key) not in neutral:
            raise ValueError(f"{key} = {config[key]} in config.json is not supported for {family}")


def _shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor of the folder's safetensors files; they are read with more care later."""
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with inside(folder, path.name).open("rb") as file:
                header = json.loads(file.read(min(int.from_bytes(file.read(8), "little"), _MAX_HEADER)))
            shapes = {name: tuple(each["shape"]) for name, each in header.items() if name != "__metadata__"}
        except (json.JSONDecodeError, UnicodeDecodeError, LookupError, AttributeError) as error:
            raise ValueError(f"{path} is no safetensors file: {error}") from None
        yield from ((name, shape) for name, shape in shapes.items() if not name.endswith(_DERIVED))
