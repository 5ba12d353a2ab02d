"""Builds transformers' layers of a text model, with attention and weights of the caller's.

The trainer and the native engine both compute families without layers of rlrun's own by them.
"""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rlrun.models.architecture import Architecture


def build_network(folder: Path, attention: str, dtype: torch.dtype) -> PreTrainedModel:
    """Returns the text model of a folder, on the meta device.

    `attention`: the name of a registered `transformers.AttentionInterface`.
    """
    config = AutoConfig.from_pretrained(folder).get_text_config(decoder=True)
    with torch.device("meta"):
        network: PreTrainedModel = AutoModelForCausalLM.from_config(
            config, attn_implementation=attention, dtype=dtype
        )
    return network


def check_modules(network: PreTrainedModel, model: Architecture) -> None:
    """Raises ValueError if the model's modules are not named like Llama's."""
    base = getattr(network, "model", None)
    if base is None or not all(hasattr(base, part) for part in ("embed_tokens", "layers", "norm")):
        raise ValueError(f"transformers' {model.family} has no model.embed_tokens, model.layers, model.norm")


def fill_buffers(network: PreTrainedModel) -> None:
    """Computes the buffers that are not in the checkpoint, such as rotary frequencies, by transformers.

    Raises ValueError for a model whose buffers transformers does not compute.
    """
    for name, module in network.model.named_modules():
        buffers = [module._buffers[key] for key in module._non_persistent_buffers_set]
        buffers = [buffer for buffer in buffers if buffer is not None and buffer.is_floating_point()]
        if not buffers:
            continue
        for buffer in buffers:
            buffer.fill_(torch.nan)
        for parameter in module.parameters(recurse=False):
            parameter._is_hf_initialized = True  # transformers then leaves it as it is
        with torch.no_grad():
            network._init_weights(module)
        if any(buffer.isnan().any() for buffer in buffers):
            raise ValueError(f"{name} has buffers that only its model can fill: choose another model")
