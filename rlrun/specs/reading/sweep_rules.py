"""Rules of `[sweep]`: each key has values, and the search has what it needs."""

from collections.abc import Iterator
from typing import Any, TypeGuard

from rlrun.specs.derived.sweep_trials import RANGE_KEYS, dotted_key, sweep_leaves
from rlrun.specs.problems.findings import Finding, format_value
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.shared_rules import Rule, no_effect
from rlrun.specs.sections.job import Spec

_KEYS: KeyPath = ("sweep", "keys")
_FIXED = ("sweep", "name", "runs_dir", "extends", "profiles", "vars")
_HOW = "write a list, `[1e-6, 1e-5]`, or a range, `{ min = 1e-6, max = 1e-4, count = 3 }`"


def sweep_values(spec: Spec) -> Iterator[Finding]:
    """Each key has a list of values or a range."""
    for path, value in sweep_leaves(spec.sweep.keys) if spec.sweep else ():
        at = (*_KEYS, *path)
        if dotted_key(path).partition(".")[0] in _FIXED:
            yield Finding(at, "cannot vary", "remove it; trials get names of their own", at_value=False)
        elif isinstance(value, dict) and value:
            yield from _range(at, value, grid=spec.sweep is not None and spec.sweep.search == "grid")
        elif not isinstance(value, list) or not value:
            yield Finding(at, f"must be a list or a range, found {format_value(value)}", _HOW, found=value)


def _range(path: KeyPath, table: dict[str, Any], *, grid: bool) -> Iterator[Finding]:
    if unknown := sorted(table.keys() - RANGE_KEYS):
        yield Finding((*path, unknown[0]), "unknown key of a range", _HOW, at_value=False)
        return
    low, high, count = table.get("min"), table.get("max"), table.get("count")
    if not (_is_number(low) and _is_number(high)) or low >= high:
        yield Finding(path, "min and max must be two numbers, and min the smaller one", _HOW)
    elif not isinstance(table.get("log", False), bool):
        yield Finding((*path, "log"), "must be true or false", found=table["log"])
    elif table.get("log") and low <= 0:
        yield Finding(path, "a logarithm needs a min greater than 0", "raise min, or remove `log`")
    elif count is not None and (not _is_number(count) or not isinstance(count, int) or count < 2):
        yield Finding((*path, "count"), "must be a whole number of at least 2", found=count)
    elif not grid and count is not None:
        why = "Optuna chooses any value between min and max"
        yield no_effect((*path, "count"), why, "remove it", (("sweep", "search"),))
    elif grid and count is None:
        message, cure = "a grid needs the number of values of a range", "add `count = 3`"
        yield Finding(path, message, cure, related=(("sweep", "search"),))


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def sweep_search(spec: Spec) -> Iterator[Finding]:
    """Only Optuna needs a number of trials."""
    if spec.sweep is None:
        return
    path: KeyPath = ("sweep", "trials")
    if spec.sweep.search == "optuna" and spec.sweep.trials is None:
        message, cure = "an Optuna search needs a number of trials", "add `trials = 20`"
        yield Finding(("sweep", "search"), message, cure, "trials", "optuna", related=(path,))


def sweep_push(spec: Spec) -> Iterator[Finding]:
    """Trials do not push their models to one repository."""
    if spec.sweep is None or spec.checkpoint.push is None:
        return
    if "checkpoint.push" not in {dotted_key(path) for path, _ in sweep_leaves(spec.sweep.keys)}:
        message = "every trial of [sweep] would push its model to this repository, one over the other"
        yield Finding(("checkpoint", "push"), message, "remove it, and push the best model afterwards")


SWEEP_RULES: tuple[Rule, ...] = (sweep_values, sweep_search, sweep_push)
