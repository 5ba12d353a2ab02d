"""transformers' generate, which decodes every row to the end of the longest."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from rounds import Generate, Prompts, run_rounds
from transformers import AutoModelForCausalLM, GenerationConfig


def start(folder: Path, settings: dict[str, Any]) -> Generate:
    """Loads the model; its prompts must have equal lengths."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(settings["threads"])
    dtype = getattr(torch, settings["dtype"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()
    decode: Callable[..., torch.Tensor] = model.generate

    def generate(prompts: Prompts, budgets: list[int]) -> int:
        ids = torch.tensor(prompts)
        config = GenerationConfig(
            max_new_tokens=max(budgets), do_sample=True, top_k=0, pad_token_id=0, disable_compile=True
        )
        with torch.no_grad():
            decode(input_ids=ids, attention_mask=torch.ones_like(ids), generation_config=config)
        return sum(budgets)  # what is generated beyond is of no use

    return generate


if __name__ == "__main__":
    run_rounds(start)
