"""Several data sources as one, each with its share of an epoch."""

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rlrun.plugins.registry import build, checked_params, load
from rlrun.plugins.types import Row
from rlrun.specs.sections.section import Section


class MixedSource(BaseModel):
    """One source: its `type`, its `weight`, and the source's own keys beside them."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    """Name of the data source."""
    weight: float = Field(default=1.0, gt=0)
    """How often an epoch has each of its rows: 2 is twice, 0.5 every other row."""


class MixtureParams(Section):
    """What is mixed."""

    sources: Annotated[list[MixedSource], Field(min_length=1)]
    """The sources, as tables: `[[data.sources]]`."""
    seed: int = 0
    """Which rows a broken weight takes: 0.5 takes half of them by chance, the same half in every epoch."""


class Mixture:
    """All rows of all sources; ids are `<number of the source>:<id>`, metadata get `source` with its number.

    A path in a source is relative to where the job is started, unless it is absolute.
    """

    Params = MixtureParams
    api_version = 1

    def __init__(self, params: MixtureParams) -> None:
        """PluginError or ValueError where a source cannot be made; says which."""
        self.params = params
        self._sources = []
        self._places: list[list[int]] = []
        for number, source in enumerate(params.sources):
            try:
                made = build("data", source.type, dict(source.model_extra or {}))
            except ValueError as error:
                raise ValueError(f"source {number} ({source.type}): {error}") from error
            self._sources.append(made)
            self._places.append(_weighted(len(made), source.weight, f"{params.seed} {number}"))
        self._ends = list(accumulate(map(len, self._places)))

    @classmethod
    def preview(cls, params: MixtureParams, count: int) -> Iterator[Row | ValueError]:
        """Yields a few rows of each source that can be previewed, or what is wrong with them."""
        for number, source in enumerate(params.sources):
            kind, given = load("data", source.type), dict(source.model_extra or {})
            if hasattr(kind, "preview"):
                inner = checked_params("data", source.type, given)
                for row in kind.preview(inner, -(-count // len(params.sources))):
                    yield ValueError(f"source {number}: {row}") if isinstance(row, ValueError) else row

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Row:
        """ValueError where the source calls the row broken; says which source."""
        number = bisect_right(self._ends, index)
        within = index - (self._ends[number - 1] if number else 0)
        copy = within // len(self._sources[number])
        try:
            row: Row = self._sources[number][self._places[number][within]]
        except ValueError as error:
            raise ValueError(f"source {number}: {error}") from error
        again = f"#{copy + 1}" if copy else ""
        return replace(row, id=f"{number}:{row.id}{again}", metadata={**row.metadata, "source": number})


def _weighted(count: int, weight: float, seed: str) -> list[int]:
    """Every row as often as the weight is whole, and a share of them once more."""
    whole, part = divmod(weight, 1)
    chosen = sorted(random.Random(seed).sample(range(count), round(part * count)))
    return [*list(range(count)) * int(whole), *chosen]
