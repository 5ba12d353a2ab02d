"""Drops groups, or single responses, that are too short or too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlrun.plugins.types import Drop, Group, Mask
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
else:
    from rlrun.plugins import lazy_numpy as np


class LengthParams(Section):
    """The range of response lengths in tokens that is kept, including both ends."""

    min_tokens: int = Field(default=0, ge=0)
    """Smallest length."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Largest length. None: no limit."""
    single: Literal["drop", "mask"] | None = None
    """What happens to a single response outside of the range: it is dropped from its group, or masked, which
    means not trained on. None: the group is dropped if the mean of its lengths is outside."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens})")
        if self.max_tokens is None and not self.min_tokens:
            raise ValueError("needs min_tokens or max_tokens: without a limit every sample is kept")
        return self


class Length:
    """Keeps a group, or each of its responses, if min_tokens <= (mean) response length <= max_tokens."""

    Params = LengthParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {"max_tokens": 2}

    def __init__(self, params: LengthParams) -> None:
        self.params = params

    def __call__(self, group: Group) -> Drop | Mask | None:
        """Returns the verdict with the reason `short` or `long`, or `length` for single responses."""
        lengths = [len(sample.tokens) for sample in group.samples]
        if self.params.single is None:
            reason = self._reason(float(np.mean(lengths)))
            return Drop(reason) if reason else None
        outside = tuple(index for index, length in enumerate(lengths) if self._reason(length))
        if not outside:
            return None
        return (Drop if self.params.single == "drop" else Mask)("length", outside)

    def _reason(self, length: float) -> str | None:
        if length < self.params.min_tokens:
            return "short"
        if self.params.max_tokens is not None and length > self.params.max_tokens:
            return "long"
        return None
