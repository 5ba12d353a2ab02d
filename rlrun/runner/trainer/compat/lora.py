"""torchtitan's low-rank adapters."""

from collections.abc import Collection
from dataclasses import fields
from typing import Any

import rlrun.runner.trainer.compat.device  # noqa: F401  (before torchtitan)

# isort: split
from torchtitan.components.lora import LoRAConverter
from torchtitan.models.common.linear import Linear


def convert_to_lora(config: Any, *, rank: int, scale: float, names: Collection[str]) -> Any:
    """Returns a model config in which the matrices with these names have adapters; call it after sharding
    is set, because adapters derive their layout from the matrix's.
    """
    # torchtitan multiplies by alpha / rank
    settings = LoRAConverter.Config(rank=rank, alpha=scale * rank, target_modules=sorted(names))
    return LoRAConverter(settings).convert(config)


def replace_linear(config: Any, module: Any, names: Collection[str], **settings: Any) -> Any:
    """Returns a model config whose linear layers with these names are of another class with its `settings`;
    they keep their layout over the ranks.
    """
    for path, matrix, parent, attribute in list(config.traverse(Linear.Config)):
        if path.rpartition(".")[2] in names:
            own = {field.name: getattr(matrix, field.name) for field in fields(matrix) if field.init}
            setattr(parent, attribute, module.Config(**own, **settings))
    return config
