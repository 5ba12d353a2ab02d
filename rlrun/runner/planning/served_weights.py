"""Counts what engines hold: weights, which may be quantised (`engine.model`), adapters and draft models."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from rlrun.models.adapters import AnyAdapter, LoraShape, adapters
from rlrun.models.architecture import Architecture
from rlrun.models.config_json import architecture, read_config
from rlrun.models.decoder_config import packed_groups
from rlrun.models.json_files import read_json_object
from rlrun.models.low_precision import PROJECTIONS, has_routed_experts, is_int4_matrix
from rlrun.models.tensor_names import FUSED_RUNS, hf_tensors
from rlrun.runner.planning.activations import ITEM_BYTES
from rlrun.runner.planning.model_size import parameter_count, stacks_of
from rlrun.specs.derived.speculation import mtp_layers
from rlrun.specs.sections.engine import EngineSpec, SpeculativeSpec

_FP8_BLOCK = 128
_FP8_BYTES = 1 + 4 / _FP8_BLOCK**2
"""A number, and its share of a block's float32 scale."""

_SPLIT_BY_INPUTS = ("o_proj", "down_proj")
"""Matrices of which tensor-parallel ranks have some of the inputs; of all others some of the outputs."""
_EAGLE3_STATES = 3
"""Layers of the served model whose hidden states an EAGLE3 draft reads, unless its config says otherwise."""


def served_weight_bytes(model: Architecture, engine: EngineSpec) -> tuple[int, str]:
    """Returns the bytes of an engine's weights, and how they add up. Engines that do not speculate with an
    MTP layer have none.
    """
    if engine.speculative.algorithm != "mtp":
        model = replace(model, mtp=None)
    item, count = ITEM_BYTES[engine.dtype], parameter_count(model)
    settings = _quantisation(engine.model)
    group = _int4_group(settings)
    if group is None and settings.get("quant_method") != "fp8":
        return count * item, f"{count:,} × {item} bytes"
    quantised = _quantised_numbers(model, int4=group is not None)
    per_number = _FP8_BYTES if group is None else 0.5 + item / group
    kind = "FP8" if group is None else "INT4"
    size = math.ceil(quantised * per_number) + (count - quantised) * item
    return size, f"{quantised:,} × {per_number:.4g} bytes ({kind}), {count - quantised:,} × {item} bytes"


def served_model(model: Architecture, engine: EngineSpec) -> Architecture:
    """Returns the model that an engine loads: an SGLang server has the vision tower that its checkpoint has,
    also where the trainer leaves it out (`trainer.vision_tower = "none"`). An MTP layer that is trained is a
    draft model there, or missing.
    """
    model = replace(model, mtp=None)
    if engine.type != "sglang" or model.vision is None:
        return model
    return replace(model, vision=replace(model.vision, loaded=True))


def adapter_room_bytes(
    model: Architecture, served: Collection[AnyAdapter], slots: int, item: int, tensor: int
) -> int:
    """Returns the bytes that an SGLang server takes on each GPU for `slots` adapters of its model.

    It allocates them at its start: in each slot both factors, of the largest rank, for each kind of matrix
    that any of the `served` adapters has (sglang.srt.lora.mem_pool). `item`: bytes of a number. `tensor`:
    GPUs that split one factor of each adapter.
    """
    rank, targets = max(each.rank for each in served), {each.target for each in served}
    # a server has room for adapters of all matrices that it fuses if one of them has an adapter
    targets |= {name for fused in FUSED_RUNS if targets.intersection(fused) for name in fused}
    numbers = 0
    for each in adapters(model, LoraShape(rank, 1.0, tuple(sorted(targets)))):
        down, up = math.prod(each.down.shape), math.prod(each.up.shape)
        split, whole = (down, up) if each.target in _SPLIT_BY_INPUTS else (up, down)
        numbers += -(-split // tensor) + whole
    return slots * numbers * item


@cache
def _quantised_numbers(model: Architecture, *, int4: bool) -> int:
    """Returns how many numbers of a model are in four bits, or in FP8."""
    tensors = hf_tensors(model)
    routed = has_routed_experts(tensor.name for tensor in tensors)
    return sum(
        math.prod(tensor.shape)
        for tensor in tensors
        if (is_int4_matrix(tensor.name, routed=routed) if int4 else tensor.name.endswith(PROJECTIONS))
    )


def _quantisation(folder: str | None) -> dict[str, Any]:
    """Returns the settings of a quantised folder; empty for others, and for ids on the hub."""
    if folder is None or not (Path(folder) / "config.json").is_file():
        return {}
    try:
        settings = read_json_object(Path(folder) / "config.json").get("quantization_config")
    except ValueError:
        return {}
    return settings if isinstance(settings, dict) else {}


def _int4_group(settings: dict[str, Any]) -> int | None:
    """Returns how many numbers share a scale in a folder in INT4; None for other folders."""
    if settings.get("format") != "pack-quantized":
        return None
    return next((size for size in packed_groups(settings) if isinstance(size, int) and size > 0), None)


@dataclass(frozen=True, slots=True)
class DraftModel:
    """The model that guesses tokens in an SGLang server (`[engine.speculative]`).

    The server has a KV cache for it with as many tokens as its own, and lends its embedding, and mostly its
    head, to drafts that read its hidden states.

    Example (the MTP layer of GLM-4.5-Air): `DraftModel(parameters=2_294_000_000, cached=2048, heads=8)`
    """

    parameters: int
    """Those that the served model does not lend it."""
    cached: int
    """Numbers of one token in its KV cache, over all of its layers."""
    heads: int
    """Heads of keys and values in that cache."""
    block: int | None = None
    """Tokens that a DFLASH draft was trained to guess at once, with the token before them."""


def draft_model(spec: SpeculativeSpec, model: Architecture, config: Mapping[str, Any]) -> DraftModel | None:
    """Returns the draft model of a server; None if it guesses from texts, or not at all.

    `config`: the config.json of the served `model`. Raises ValueError if that of the draft model cannot be
    used.
    """
    if spec.algorithm in (None, "ngram"):
        return None
    if spec.algorithm == "mtp":
        return _mtp_draft(model, mtp_layers(config))
    if spec.draft_model is None:
        return None  # a rule reports it
    own, where = read_config(Path(spec.draft_model)), f"{spec.draft_model}/config.json"
    if spec.algorithm == "standalone":
        whole = architecture(own, where)
        return DraftModel(parameter_count(whole), _cached(whole) * whole.attention_layers, _heads(whole))
    try:
        return _reading_draft(own, spec.algorithm)
    except KeyError as missing:
        raise ValueError(f"{where} has no {missing}") from None
    except TypeError as error:
        raise ValueError(f"{where} has a value of the wrong type: {error}") from None


def _mtp_draft(model: Architecture, layers: int) -> DraftModel:
    """Returns layers like the policy's last one, each with a projection of two vectors and three norms."""
    last = f"layers.{model.layers - 1}."
    block = sum(stack.size for stack in stacks_of(model) if stack.tensor.parameter.startswith(last))
    added = 2 * model.hidden**2 + 3 * model.hidden
    return DraftModel(layers * (block + added), layers * _cached(model), _heads(model))


def _reading_draft(config: Mapping[str, Any], algorithm: str | None) -> DraftModel:
    """Returns a draft that reads the served model's hidden states: EAGLE, EAGLE3 and DFLASH (models/
    llama_eagle.py, llama_eagle3.py and dflash.py of SGLang).
    """
    hidden, layers, heads = (
        config[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")
    )
    width = config.get("head_dim") or hidden // heads
    kv_heads = config.get("num_key_value_heads") or heads
    queries, keys_values = heads * width, 2 * kv_heads * width
    layer = (
        2 * hidden * queries + hidden * keys_values + 3 * hidden * config["intermediate_size"] + 2 * hidden
    )
    parameters = layers * layer
    if algorithm == "eagle":
        parameters += 2 * hidden**2 - hidden  # the first layer has one norm
    elif algorithm == "eagle3":
        # The first layer reads the token's embedding beside the hidden state; each has a third norm.
        parameters += hidden * (queries + keys_values) + (layers + 1) * hidden
        read = _states(config) or _EAGLE3_STATES
        parameters += read * config.get("target_hidden_size", hidden) * hidden
        parameters += (config.get("draft_vocab_size") or 0) * hidden
    else:
        parameters += layers * 2 * width + 2 * hidden + (_states(config) or layers) * hidden**2
    return DraftModel(parameters, layers * keys_values, kv_heads, _block(config))


def _states(config: Mapping[str, Any]) -> int:
    """Returns of how many layers a draft reads the hidden states, or 0 if its config does not say it."""
    eagle, dflash = config.get("eagle_config") or {}, config.get("dflash_config") or {}
    ids = eagle.get("eagle_aux_hidden_state_layer_ids") or dflash.get("target_layer_ids")
    ids = ids or config.get("target_layer_ids")
    return config.get("num_aux_hidden_states") or len(ids or ())


def _block(config: Mapping[str, Any]) -> int | None:
    return (config.get("dflash_config") or {}).get("block_size") or config.get("block_size")


def _cached(model: Architecture) -> int:
    """Returns the numbers of one token in one layer's cache."""
    if model.latent is not None:
        return model.latent.kv_rank + model.latent.rotated_dim
    return 2 * model.kv_heads * model.head_dim


def _heads(model: Architecture) -> int:
    return 1 if model.latent is not None else model.kv_heads
