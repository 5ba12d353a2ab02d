"""Drops groups whose responses are, on average, too short or too long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from rlrun.plugins.types import Drop, Group
from rlrun.specs.section import Section

if TYPE_CHECKING:
    import numpy as np
else:
    from rlrun.plugins import lazy_numpy as np


class LengthParams(Section):
    """The range of mean response lengths that is kept, ends included, in tokens."""

    min_tokens: int = Field(default=0, ge=0)
    """Smallest mean length."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Largest mean length. None: any."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens})")
        return self


class Length:
    """Keeps a group when min_tokens <= mean response length <= max_tokens."""

    Params = LengthParams
    api_version = 1

    def __init__(self, params: LengthParams) -> None:
        self.params = params

    def __call__(self, group: Group) -> Drop | None:
        """Reasons: `short`, `long`."""
        mean = float(np.mean([len(sample.tokens) for sample in group.samples]))
        if mean < self.params.min_tokens:
            return Drop("short")
        if self.params.max_tokens is not None and mean > self.params.max_tokens:
            return Drop("long")
        return None
