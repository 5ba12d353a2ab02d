"""torchtitan's low-rank adapters."""

from collections.abc import Collection
from typing import Any

import rlrun.runner.trainer.compat.device  # noqa: F401  (before torchtitan)

# isort: split
from torchtitan.components.lora import LoRAConverter


def convert_to_lora(config: Any, *, rank: int, scale: float, names: Collection[str]) -> Any:
    """Returns a model config in which the matrices with these names have adapters; call it after sharding
    is set, because adapters derive their layout from the matrix's.
    """
    # torchtitan multiplies by alpha / rank
    settings = LoRAConverter.Config(rank=rank, alpha=scale * rank, target_modules=sorted(names))
    return LoRAConverter(settings).convert(config)
