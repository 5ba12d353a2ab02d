"""torchtitan's low-rank adapters."""

from collections.abc import Collection
from dataclasses import fields
from typing import Any

import rlrun.runner.trainer.compat.device  # noqa: F401  (before torchtitan)

# isort: split
import spmd_types as spmd
import torchtitan.components.lora
from torchtitan.components.lora import LoRAConverter
from torchtitan.models.common.decoder_sharding import dense_param_placement
from torchtitan.models.common.linear import Linear
from torchtitan.protocols.sharding import ShardingConfig

_adapter_layout = torchtitan.components.lora._lora_adapter_sharding


def _layout_of_factors(
    matrix: ShardingConfig | None,
) -> tuple[ShardingConfig | None, ShardingConfig | None]:
    """Returns the layout of an adapter's factors, also of a matrix that no tensor-parallel rank splits.

    torchtitan fails for these, which latent attention has.
    """
    whole = dense_param_placement(tp=spmd.R)
    if matrix is not None and matrix.state_shardings.get("weight") == whole:
        factor = ShardingConfig(state_shardings={"weight": whole})
        return factor, factor
    layouts: tuple[ShardingConfig | None, ShardingConfig | None] = _adapter_layout(matrix)
    return layouts


torchtitan.components.lora._lora_adapter_sharding = _layout_of_factors


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
            values = {field.name: getattr(matrix, field.name) for field in fields(matrix) if field.init}
            setattr(parent, attribute, module.Config(**values, **settings))
    return config


def shard_expert_factors(
    sharding: ShardingConfig | None, split: Collection[str], whole: Collection[str]
) -> ShardingConfig | None:
    """Returns the layout of experts with the factors of their adapters.

    With expert parallelism every rank has the factors of its experts. Without it, tensor-parallel ranks have
    parts of the `split` factors, along the same dimension as of `w1_EFD`, and all of the `whole` ones.
    """
    if sharding is None:
        return None
    layout = sharding.state_shardings["w1_EFD"]
    is_dense = layout == dense_param_placement(tp=spmd.S(1))
    factors = dict.fromkeys(split, layout)
    factors |= dict.fromkeys(whole, dense_param_placement(tp=spmd.R) if is_dense else layout)
    return ShardingConfig(state_shardings=sharding.state_shardings | factors)
