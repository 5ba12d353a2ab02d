"""Experts that multiply in low precision."""

from dataclasses import dataclass

import torch
from torch.nn.functional import linear, pad

from rlrun.models.low_precision import LowPrecision
from rlrun.runner.trainer.model.layers import Experts
from rlrun.runner.trainer.model.low_precision.blockwise import blockwise_product


class LowPrecisionProducts:
    """The products of converted experts, which take the place of those in bfloat16."""

    precision: LowPrecision

    def _product(
        self, tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Multiplies one expert's tokens on a CPU."""
        if not len(tokens):
            return linear(tokens, weight, bias)  # there is no largest number to derive a scale from
        output = low_precision_product(tokens, weight, self.precision)
        return output if bias is None else output + bias

    def _grouped_mm(self, *, A: torch.Tensor, B_t: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        """Multiplies all experts' tokens on a GPU."""
        from rlrun.runner.trainer.compat.low_precision import grouped_product

        return grouped_product(self.precision, A, B_t, offs)


class ConvertedExperts(LowPrecisionProducts, Experts):
    """Experts in low precision."""

    @dataclass(kw_only=True, slots=True)
    class Config(Experts.Config):
        precision: LowPrecision

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.precision = config.precision


def low_precision_product(rows: torch.Tensor, weight: torch.Tensor, precision: LowPrecision) -> torch.Tensor:
    """Returns `rows @ weight.T` `[R, out]` as a CPU computes it in this precision."""
    from rlrun.runner.trainer.compat.low_precision import float8_product, mxfp8_product

    if precision.blockwise:
        return blockwise_product(rows, weight)
    if precision.name == "float8":
        return float8_product(rows, weight, "rowwise")  # torchao's grouped products have no other recipe
    missing = -len(rows) % precision.multiple
    return mxfp8_product(pad(rows, (0, 0, 0, missing)), weight)[: len(rows)]
