"""Checks that a job's rewards can score a row, before anything is generated for it."""

from collections.abc import Callable, Sequence
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


def _names_another(spec: RewardSpec, row: Row) -> bool:
    """Returns whether the row's metadata select a reward other than this one."""
    named = row.metadata.get(spec.type_key) if spec.type_key else None
    return bool(named) and str(named).strip() != spec.type


def _check_one(spec: RewardSpec, check_row: Callable[[Any, Row], None], params: Any, row: Row) -> None:
    try:
        check_row(params, row)
    except ValueError as error:
        raise ValueError(f"row {row.id}: reward {spec.type!r} {error}") from error
