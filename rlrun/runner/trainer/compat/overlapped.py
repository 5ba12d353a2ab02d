"""torchtitan's dense layers whose tensor-parallel exchanges overlap with their matrix products.

The products are torch's, over symmetric memory (`torch.ops.symm_mem`), which every rank of the group can
read.
"""

import rlrun.runner.trainer.compat.device  # noqa: F401  (before torchtitan)

# isort: split
from torchtitan.distributed.linear import AllGatherLinear
from torchtitan.models.common.dist_gemm import (
    AllGatherFusedFeedForward,
    RowParallelLinear,
    _tp_group_from_context,
)

__all__ = ["AllGatherFusedFeedForward", "AllGatherLinear", "RowParallelLinear", "tensor_group"]

tensor_group = _tp_group_from_context
"""Returns the tensor-parallel ranks of the model that is computing; None for one rank."""
