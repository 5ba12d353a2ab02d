"""Mixes several data sources by sampling weights, which may follow the number of prompts that were taken.

    prompt n ──▶ weights at n ──▶ a source, drawn by its share ──▶ its next row

A draw has a seed of its own, made from `seed` and n. The order of the rows thus depends on nothing but these
and the rows themselves; a checkpoint holds n, and how many rows each source gave.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

from rlrun.plugins.data.mixture import named
from rlrun.plugins.registry import build, checked_params, load
from rlrun.plugins.types import Choice, Group, Row
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from rlrun.plugins import lazy_numpy as np

Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Point = tuple[Annotated[int, Field(ge=0)], Weight]
"""A number of prompts, and the weight there."""


class ScheduledSource(BaseModel):
    """One source: its `type`, its `weight`, and the source's own keys."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    """Name of the data source."""
    weight: Annotated[
        Annotated[Weight, Tag("number")] | Annotated[tuple[Point, ...], Field(min_length=1), Tag("schedule")],
        Discriminator(lambda given: "schedule" if isinstance(given, list | tuple) else "number"),
    ] = 1.0
    """Its share of the prompts is this weight, divided by the sum of all. A list of `[prompts, weight]` is a
    schedule: `[[0, 1.0], [2000, 0.2]]` goes down in a straight line while the first 2000 prompts are taken,
    and stays at 0.2. With 0, no row is taken."""

    @property
    def points(self) -> tuple[Point, ...]:
        """Returns the schedule; a constant weight has one point."""
        return self.weight if isinstance(self.weight, tuple) else ((0, self.weight),)

    def weight_at(self, prompts: int) -> float:
        """Returns the weight after so many prompts."""
        places, weights = zip(*self.points, strict=True)
        return float(np.interp(prompts, places, weights))


class ScheduledMixtureParams(Section):
    """The sources to mix, and the seed of the draws."""

    sources: Annotated[list[ScheduledSource], Field(min_length=1)]
    """The sources, as tables: `[[data.sources]]`."""
    seed: int = Field(default=0, ge=0)
    """Seed of the draws, and of the order of the rows in each source."""

    @model_validator(mode="after")
    def _check_schedules(self) -> ScheduledMixtureParams:
        for number, source in enumerate(self.sources):
            if any(first >= second for (first, _), (second, _) in pairwise(source.points)):
                raise ValueError(f"the numbers of prompts in the weight of source {number} must grow")
        # between two of these points all weights are linear: their sum is 0 there only if it is 0 at both
        for prompts in sorted({place for source in self.sources for place, _ in source.points}):
            if not any(source.weight_at(prompts) for source in self.sources):
                raise ValueError(f"all weights are 0 after {prompts} prompts; one must be above 0")
        return self


class ScheduledMixture:
    """Contains the rows of all sources. A row's id is `<number of the source>:<id>`, and its metadata hold
    the source's number as `source`. Within a source, rows follow each other in epochs, in a new order each
    time.

    A relative path in a source is relative to the folder in which the job is started.
    """

    Params = ScheduledMixtureParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {
        "sources": [
            {"type": "reasoning_gym", "task": "chain_sum", "size": 40, "weight": [[0, 1.0], [100, 0.2]]},
            {"type": "reasoning_gym", "task": "leg_counting", "size": 40},
        ]
    }

    def __init__(self, params: ScheduledMixtureParams) -> None:
        """Raises PluginError or ValueError, naming the source, if one cannot be constructed or is empty."""
        self.params = params
        self._sources = []
        for number, source in enumerate(params.sources):
            try:
                inner = build("data", source.type, dict(source.model_extra or {}))
                if not len(inner):
                    raise ValueError("it has no rows: remove the source, or give it rows")
            except ValueError as error:
                raise ValueError(f"source {number} ({source.type}): {error}") from error
            self._sources.append(inner)
        self._ends = list(accumulate(map(len, self._sources)))
        self._taken = [0] * len(self._sources)
        """Rows that each source gave."""
        self._reported = [0] * len(self._sources)
        """Those of them that metrics have told."""
        self._orders: dict[int, tuple[int, NDArray[np.int64]]] = {}
        """The current epoch of each source and its order, which follow from the rows that it gave."""

    @classmethod
    def preview(cls, params: ScheduledMixtureParams, count: int) -> Iterator[Row | ValueError]:
        """Yields a few rows of each source that can be previewed; a broken row is yielded as a ValueError."""
        share = -(-count // len(params.sources))
        for number, source in enumerate(params.sources):
            kind, inner = load("data", source.type), dict(source.model_extra or {})
            checked = checked_params("data", source.type, inner)
            for row in kind.preview(checked, share) if hasattr(kind, "preview") else ():
                is_broken = isinstance(row, ValueError)
                yield ValueError(f"source {number}: {row}") if is_broken else named(row, number)

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Row:
        """Returns row `index`. Raises ValueError, naming the source, if the source finds the row broken."""
        number = next(number for number, end in enumerate(self._ends) if index < end)
        try:
            row: Row = self._sources[number][index - self._start_of(number)]
        except ValueError as error:
            raise ValueError(f"source {number}: {error}") from error
        return replace(named(row, number), id=f"{number}:{row.id}")

    def choose(self, samples: int) -> Choice:
        """Returns the next row of a source that is drawn by the weights at this prompt, with all samples."""
        drawn = sum(self._taken)
        generator = np.random.Generator(np.random.PCG64([self.params.seed, 0, drawn]))
        number = int(generator.choice(len(self._sources), p=self._shares(drawn)))
        epoch, place = divmod(self._taken[number], len(self._sources[number]))
        self._taken[number] += 1
        return Choice(self._start_of(number) + int(self._order(number, epoch)[place]), samples)

    def observe(self, group: Group) -> None:
        """Learns nothing: the choice does not depend on results."""

    def metrics(self) -> dict[str, float]:
        """Returns, for each source, the prompts taken since the last call, and its share of the next one."""
        metrics: dict[str, float] = {}
        for number, share in enumerate(self._shares(sum(self._taken))):
            metrics[f"mixture/{number}/prompts"] = self._taken[number] - self._reported[number]
            metrics[f"mixture/{number}/share"] = share
        self._reported = list(self._taken)
        return metrics

    def state(self) -> dict[str, Any]:
        """Returns how many rows each source gave, as JSON values."""
        return {"taken": list(self._taken), "reported": list(self._reported)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continues from a saved state. Raises ValueError if it has another number of sources."""
        if len(state["taken"]) != len(self._sources):
            raise ValueError(
                f"the checkpoint's scheduled_mixture has {len(state['taken'])} sources, this one has "
                f"{len(self._sources)}; resume with the sources it was made with"
            )
        self._taken, self._reported = list(state["taken"]), list(state["reported"])

    def _shares(self, prompts: int) -> list[float]:
        weights = [source.weight_at(prompts) for source in self.params.sources]
        return [weight / sum(weights) for weight in weights]

    def _start_of(self, number: int) -> int:
        return self._ends[number - 1] if number else 0

    def _order(self, number: int, epoch: int) -> NDArray[np.int64]:
        """Returns the rows of an epoch of a source."""
        known = self._orders.get(number)
        if known is None or known[0] != epoch:
            generator = np.random.Generator(np.random.PCG64([self.params.seed, 1, number, epoch]))
            known = epoch, generator.permutation(len(self._sources[number]))
            self._orders[number] = known
        return known[1]
