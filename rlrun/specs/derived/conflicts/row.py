"""A row of the table of what does not go together."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Literal

from rlrun.specs.derived.conflicts.feature import Feature
from rlrun.specs.problems.codes import Code


class Kind(StrEnum):
    """What rlrun says about two features that do not go together."""

    REFUSED = "is not supported"
    NO_EFFECT = "has no effect"
    UNTRIED = "was not tried"


Features = Feature | tuple[Feature, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Two features that do not go together, or several for which the same is true.

    The order only decides where a finding is reported: at the key of the first feature.
    """

    features: Features
    others: Features
    reason: str
    """A clause that can be read alone; `{algorithm}` is the name of the spec's algorithm."""
    cure: str | None = None
    """What to do, where it is not enough to undo one of the features."""
    kind: Kind = Kind.REFUSED

    def pairs(self) -> Iterator[tuple[Feature, Feature]]:
        """Yields each feature with each of the others."""
        yield from product(as_tuple(self.features), as_tuple(self.others))

    @property
    def of_model(self) -> bool:
        """Whether the row waits for the model's config.json."""
        return any((feature.of_model or other.of_model) is not None for feature, other in self.pairs())


def refused(features: Features, others: Features, reason: str, cure: str | None = None) -> Row:
    """Returns a row about features that exclude each other, or whose combination is not implemented."""
    return Row(features, others, reason, cure)


def no_effect(features: Features, others: Features, reason: str, cure: str | None = None) -> Row:
    """Returns a row about settings that have no effect beside others."""
    return Row(features, others, reason, cure, Kind.NO_EFFECT)


def untried(features: Features, others: Features, reason: str) -> Row:
    """Returns a row about features that may go together, and were not compared with a reference."""
    return Row(features, others, reason, None, Kind.UNTRIED)


@dataclass(frozen=True, slots=True)
class Topic:
    """Rows that belong together."""

    title: str
    code: Code
    """The code of findings, except those about settings without an effect."""
    rows: tuple[Row, ...]
    each: Literal["engine", "trainer", ""] = ""
    """The table that stands for several of a spec: "engine" also for each of `[[engines]]`, "trainer" also
    for `[critic]`, as an optimizer."""


def as_tuple(features: Features) -> tuple[Feature, ...]:
    """Returns one or several features as several."""
    return features if isinstance(features, tuple) else (features,)
