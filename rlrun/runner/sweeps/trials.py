"""One trial of a sweep: its name, its values, and the metric that it is compared by."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.derived.sweep_trials import Values, axes_of, grid
from rlrun.specs.problems.findings import Problem, SpecError, SpecText
from rlrun.specs.reading.reference import as_toml
from rlrun.specs.reading.variables import toml_value
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.sweep_section import SweepSpec

_MAX_NAME_LENGTH = 80

TrialName = Annotated[str, Field(pattern=r"^[0-9][A-Za-z0-9.-]*$", max_length=_MAX_NAME_LENGTH)]
"""The name of a trial in sweep.json, which may come from elsewhere: it cannot leave the sweep's folder."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A run of the sweep."""

    name: TrialName
    values: Values


def trial_of(number: int, values: Values) -> Trial:
    """Returns a trial; its name is its number, and the last part of each key with its value."""
    parts = [f"{key.rpartition('.')[2]}-{_as_text(value)}" for key, value in values.items()]
    name = re.sub(r"[^A-Za-z0-9.]+", "-", "-".join([str(number), *parts]))
    return Trial(name[:_MAX_NAME_LENGTH].strip("-."), values)


def _as_text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def trials_of(sweep: SweepSpec, known: Sequence[Trial] = ()) -> list[Trial]:
    """Returns the trials of a grid: those that are known already, by their values, then new ones."""
    wanted = grid(axes_of(sweep))
    kept = [trial for trial in known if trial.values in wanted]
    known_values = [trial.values for trial in known]
    new = [values for values in wanted if values not in known_values]
    return kept + [trial_of(len(known) + number, values) for number, values in enumerate(new)]


def settings_of(values: Mapping[str, Any]) -> list[str]:
    """Returns the values of a trial as `--set` takes them."""
    return [f"{key}={as_toml(value)}" for key, value in values.items()]


def sweep_setting(argument: str) -> str:
    """Returns `--sweep trainer.lr=1e-6,1e-5` as an argument of `--set`.

    A value in brackets or braces is TOML. Raises ValueError if the argument has no key or no value.
    """
    key, _, values = (part.strip() for part in argument.partition("="))
    if not key or not values:
        raise ValueError(
            f"--sweep {argument!r} has no key or no values: write --sweep trainer.lr=1e-6,1e-5, or "
            "--sweep 'trainer.lr={ min = 1e-6, max = 1e-4, count = 3, log = true }'"
        )
    if values[0] in "[{":
        return f"sweep.keys.{key}={values}"
    return f"sweep.keys.{key}={as_toml([toml_value(value.strip()) for value in values.split(',')])}"


def objective(spec: Spec) -> tuple[str, bool]:
    """Returns the metric that trials are compared by, and whether larger values are better."""
    sweep, datasets = spec.sweep, spec.eval.datasets
    assert sweep is not None
    reward = f"eval/{datasets[0].name}/reward" if datasets else "rollout/reward/mean"
    metric = sweep.metric or (reward if spec.rewards else "train/loss")
    return metric, (sweep.goal or ("min" if metric == "train/loss" else "max")) == "max"


def best_of(scores: Sequence[float | None], *, larger: bool) -> int | None:
    """Returns the position of the best score; None if there is none."""
    known = [(score, number) for number, score in enumerate(scores) if score is not None]
    if not known:
        return None
    return (max if larger else min)(known, key=lambda pair: pair[0])[1]


def check_trials(
    trials: Sequence[Trial],
    files: Sequence[Path | SpecText],
    overrides: Sequence[str],
    profiles: Sequence[str],
) -> None:
    """Raises SpecError with every problem of the specs of the trials."""
    problems: dict[Problem, None] = {}
    for trial in trials:
        try:
            load_checked_spec(files, [*overrides, *settings_of(trial.values)], profiles)
        except SpecError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise SpecError(list(problems))
