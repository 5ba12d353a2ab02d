"""Mixes several data sources into one; each source's weight sets its share of an epoch."""

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

_MAX_COUNTED = 100_000
"""The most rows of a source that `preview` reads to compare them with a small weight."""


class MixedSource(BaseModel):
    """One source: its `type`, its `weight`, and the source's own keys."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    """Name of the data source."""
    weight: float = Field(default=1.0, gt=0)
    """How many times an epoch contains each row: 2 means twice; 0.5 means that half of the rows are used. A
    weight that takes no row is an error."""


class MixtureParams(Section):
    """The sources to mix, and the seed of the choice of rows."""

    sources: Annotated[list[MixedSource], Field(min_length=1)]
    """The sources, as tables: `[[data.sources]]`."""
    seed: int = 0
    """Seed of the rows that a fractional weight takes: 0.5 takes a random half, the same in every epoch."""


class Mixture:
    """Contains the rows of all sources. A row's id is `<number of the source>:<id>`, and its metadata hold
    the source's number as `source`.

    A relative path in a source is relative to the folder in which the job is started.
    """

    Params = MixtureParams
    api_version = 1

    def __init__(self, params: MixtureParams) -> None:
        """Raises PluginError or ValueError, naming the source, if a source cannot be constructed."""
        self.params = params
        self._sources = []
        self._places: list[list[int]] = []
        for number, source in enumerate(params.sources):
            try:
                inner = build("data", source.type, dict(source.model_extra or {}))
                places = _weighted(len(inner), source.weight, f"{params.seed} {number}")
            except ValueError as error:
                raise ValueError(f"source {number} ({source.type}): {error}") from error
            self._sources.append(inner)
            self._places.append(places)
        self._ends = list(accumulate(map(len, self._places)))

    @classmethod
    def preview(cls, params: MixtureParams, count: int) -> Iterator[Row | ValueError]:
        """Yields a few rows of each source that can be previewed; a broken row is yielded as a ValueError.

        Raises ValueError for a source that is too small for its weight.
        """
        share = -(-count // len(params.sources))
        for number, source in enumerate(params.sources):
            kind, plugin_params = load("data", source.type), dict(source.model_extra or {})
            if hasattr(kind, "preview"):
                inner = checked_params("data", source.type, plugin_params)
                seen = 0
                for row in kind.preview(inner, max(share, min(_least_rows(source.weight), _MAX_COUNTED))):
                    seen += 1
                    if seen <= share:
                        is_broken = isinstance(row, ValueError)
                        yield ValueError(f"source {number}: {row}") if is_broken else named(row, number)
                if 0 < seen < min(_least_rows(source.weight), _MAX_COUNTED):
                    raise ValueError(f"source {number} ({source.type}): {_too_few(seen, source.weight)}")

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Row:
        """Returns row `index`. Raises ValueError, naming the source, if the source finds the row broken."""
        number = bisect_right(self._ends, index)
        within = index - (self._ends[number - 1] if number else 0)
        copy = within // len(self._sources[number])
        try:
            row: Row = self._sources[number][self._places[number][within]]
        except ValueError as error:
            raise ValueError(f"source {number}: {error}") from error
        suffix = f"#{copy + 1}" if copy else ""
        return replace(named(row, number), id=f"{number}:{row.id}{suffix}")


def named(row: Row, number: int) -> Row:
    """Returns the row with the number of its source."""
    return replace(row, metadata={**row.metadata, "source": number})


def _weighted(count: int, weight: float, seed: str) -> list[int]:
    """Returns row numbers: all rows, repeated by the weight's integer part, then a random selection of rows
    for its fractional part.

    Raises ValueError if these are none: the source would not be in the mixture.
    """
    copies, part = divmod(weight, 1)
    chosen = sorted(random.Random(seed).sample(range(count), round(part * count)))
    if not copies and not chosen:
        raise ValueError(_too_few(count, weight))
    return [*list(range(count)) * int(copies), *chosen]


def _least_rows(weight: float) -> int:
    """Returns how many rows a source must have so that its weight takes one of them."""
    return 1 if weight > 0.5 else int(0.5 / weight) + 1


def _too_few(count: int, weight: float) -> str:
    if not count:
        return "it has no rows: remove the source, or give it rows"
    return (
        f"weight = {weight:g} takes none of its {count} rows, because {weight * count:g} rows round to 0: "
        f"set weight to {1 / count:.3g} for one row per epoch, or remove the source"
    )
