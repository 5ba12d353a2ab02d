"""Checks of rows before a job uses them: whether its rewards can score them, and the labels of KTO."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from rlrun.plugins.registry import checked_params, load
from rlrun.plugins.types import Row
from rlrun.specs.sections.scoring import RewardSpec


def row_check(rewards: Sequence[RewardSpec]) -> Callable[[Row], None]:
    """Returns a function that raises ValueError for a row that a reward cannot score, naming the reward."""
    checks = [
        (spec, load("rewards", spec.type).check_row, checked_params("rewards", spec.type, spec.params))
        for spec in rewards
        if hasattr(load("rewards", spec.type), "check_row")
    ]

    def check(row: Row) -> None:
        for spec, check_row, params in checks:
            if not _names_another(spec, row):
                _check_one(spec, check_row, params, row)

    return check


_LABELS = {"true": True, "1": True, "false": False, "0": False}
"""What the labels of responses mean, as lower-case text."""


def is_good(row: Row) -> bool:
    """Returns whether the label of a row says that its response is good. Raises ValueError if it is not a
    label.
    """
    good = _LABELS.get(str(row.label).lower())
    if good is None:
        found = "no label" if row.label is None else f"the label {row.label!r}"
        raise ValueError(
            f"row {row.id} has {found}: the algorithm needs true or false (or 1 or 0), for whether the "
            "response is good; set data.label_key"
        )
    return good


def source_of(row: Row) -> str:
    """Returns the source of a row, as its metadata name it; "" without one."""
    source = row.metadata.get("source")
    return "" if source is None else str(source)


def no_teacher(row: Row, sources: Collection[str]) -> str:
    """Returns why a row has no teacher, whose source has none of its own."""
    listed = ", ".join(sources)
    return (
        f"its source is {source_of(row) or 'not named'}, and [teacher] has teachers of the sources {listed} "
        "alone: add the source to teacher.sources, or give the other rows one teacher (path, engine, weights)"
    )


def _names_another(spec: RewardSpec, row: Row) -> bool:
    """Returns whether the row's metadata select a reward other than this one."""
    named = row.metadata.get(spec.type_key) if spec.type_key else None
    return bool(named) and str(named).strip() != spec.type


def _check_one(spec: RewardSpec, check_row: Callable[[Any, Row], None], params: Any, row: Row) -> None:
    try:
        check_row(params, row)
    except ValueError as error:
        raise ValueError(f"row {row.id}: reward {spec.type!r} {error}") from error
