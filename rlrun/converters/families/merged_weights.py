"""Weights with low-rank adapters (arXiv:2106.09685) added to them, computed a few rows at a time."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rlrun.converters.tensors.content import Content, RowByRow, plain
from rlrun.converters.tensors.stored import Files, StoredTensor
from rlrun.models.adapters import EXPERT_MATRICES


@dataclass(frozen=True, slots=True)
class MergedWeight(RowByRow):
    """`source + scale * up @ down`, in float32 and rounded once."""

    down: StoredTensor
    up: StoredTensor
    scale: float

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns rows of the merged weight."""
        up = plain(self.up).rows(files, first, last).float()
        down = plain(self.down).rows(files, 0, self.down.shape[0]).float()
        merged = merge_factors(self.source.rows(files, first, last).float(), up, down, self.scale)
        return merged.to(self.tensor.dtype)


@dataclass(frozen=True, slots=True)
class MergedExpert(RowByRow):
    """One expert's weight with its adapter, whose factors are in stacks of all experts."""

    down: StoredTensor
    up: StoredTensor
    scale: float
    expert: int
    experts: int
    half: int
    """1 for up, whose outputs follow those of gate in the second factor; otherwise 0."""
    halves: int
    trained: bool
    """The stacks have the trainer's layout, not peft's (see `rlrun.models.tensor_names.ExpertFactor`)."""

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns rows of the merged weight."""
        up, down = (self._trained if self.trained else self._of_peft)(files, first, last)
        merged = merge_factors(
            self.source.rows(files, first, last).float(),
            up.float().contiguous(),
            down.float().contiguous(),
            self.scale,
        )
        return merged.to(self.tensor.dtype)

    def _trained(self, files: Files, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        up, down = (
            plain(factor).rows(files, self.expert, self.expert + 1)[0] for factor in (self.up, self.down)
        )
        return up[self.half :: self.halves][first:last], down.t()

    def _of_peft(self, files: Files, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        rank, begin = self.down.shape[0] // self.experts, self.half * self.tensor.shape[0]
        up = plain(self.up).rows(files, begin + first, begin + last)[:, self.expert :: self.experts]
        return up, plain(self.down).rows(files, self.expert * rank, (self.expert + 1) * rank)


def merge_factors(weight: torch.Tensor, up: torch.Tensor, down: torch.Tensor, scale: float) -> torch.Tensor:
    """Returns `weight + scale * up @ down` for float32 tensors.

    The trainer and `rlrun convert` both merge with this function, so that their results are equal.
    """
    return torch.addmm(weight, up, down, alpha=scale)


def merge_experts(
    contents: Mapping[str, Content],
    module: str,
    target: str,
    factors: tuple[StoredTensor, StoredTensor],
    scale: float,
    *,
    trained: bool,
) -> dict[str, Content]:
    """Returns the weights of the experts of `module` with their adapters, whose two factors are stacks.

    `trained`: see `MergedExpert`. Raises ValueError if the model has no such experts.
    """
    down, up = factors
    parts, count = EXPERT_MATRICES[target], experts_of(contents, module)
    if not count:
        raise ValueError(f"the adapter adapts {module}, which the model does not have")
    return {
        name: MergedExpert(contents[name], down, up, scale, expert, count, half, len(parts), trained)
        for expert in range(count)
        for half, part in enumerate(parts)
        for name in [f"{module}.{expert}.{part}.weight"]
    }


def experts_of(contents: Mapping[str, Content], module: str) -> int:
    """Returns the number of experts of a layer, whose weights' names begin with `module`."""
    return sum(name.startswith(f"{module}.") and name.endswith(".down_proj.weight") for name in contents)
