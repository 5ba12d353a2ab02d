"""`rlrun plan --sweep` and `--simulate`: compare layouts."""

import json
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from rlrun.cli.output import show_waiting, table_console
from rlrun.cli.plan.picture import table
from rlrun.cli.plan.sizing import show_duration, show_hours
from rlrun.runner.planning.hardware import format_bytes
from rlrun.runner.planning.simulation import STEPS, Alternative, compare_alternatives
from rlrun.runner.planning.step_time import PlannedJob
from rlrun.runner.planning.sweep import Candidate, sweep
from rlrun.specs.reading.reference import as_toml

_SHOWN = 12
_MISSES = 3
"""How many layouts are shown where none fits."""
_DEGREES = ("fsdp", "tensor", "pipeline", "context", "expert")


def print_sweep(job: PlannedJob, as_json: bool, price: float | None = None) -> None:
    """Prints the layouts that fit, fastest first, and the options that select the first.

    `price` is the price per GPU-hour.
    """
    with show_waiting("comparing layouts"):
        candidates = sweep(job)
    if as_json:
        print(json.dumps([_sweep_row(candidate) for candidate in candidates]))
        return
    fitting = [candidate for candidate in candidates if candidate.fits]
    shown = _distinct(fitting) or sorted(candidates, key=lambda candidate: candidate.excess)[:_MISSES]
    memory = list(dict.fromkeys(phase.name for each in shown for phase in each.sizing.phases))
    rows = [
        (
            _layout(candidate),
            *_phases(candidate, memory),
            candidate.sizing.engine.concurrent if candidate.sizing.engine else "",
            show_duration(candidate.sizing.estimate.step_seconds),
            _hours(candidate.sizing.estimate.device_hours),
            *_price(candidate.sizing.estimate.device_hours, price),
        )
        for candidate in shown
    ]
    console = table_console()
    title = f"{len(fitting)} of {len(candidates)} layouts fit {job.device.name}; fastest first"
    if not fitting:
        title = f"none of {len(candidates)} layouts fits {job.device.name}; nearest first"
    columns = ("layout", *memory, "samples at a time", "step", "GPU-hours", *(["price"] if price else []))
    console.print(table(title, columns, rows))
    if fitting:
        console.print(Text(_table_note(len(fitting) - len(shown))), soft_wrap=True)
        console.print(Text(f"to use the first: {_set_options(fitting[0])}"), soft_wrap=True)


def print_simulations(job: PlannedJob, spread: float, as_json: bool) -> None:
    """Prints a simulation of each split of the GPUs in each mode, fastest first."""
    with show_waiting("simulating layouts"):
        alternatives = sorted(
            compare_alternatives(job, spread), key=lambda alternative: alternative.outcome.step_seconds
        )
    if as_json:
        print(json.dumps([_simulation_row(alternative) for alternative in alternatives]))
        return
    rows = [
        (
            _layout(alternative.candidate),
            f"async ≤ {alternative.max_staleness}" if alternative.max_staleness else "sync",
            f"{alternative.outcome.step_seconds:.3g} s",
            f"{alternative.outcome.waiting_seconds:.3g} s",
            f"{alternative.outcome.trainer_waits:.0%}",
            f"{max(alternative.outcome.engines_idle, 0.0):.0%}",
            f"{alternative.outcome.staleness:.2g}",
            _hours(alternative.device_hours),
        )
        for alternative in alternatives
    ]
    columns = (
        "layout",
        "mode",
        "step",
        "wait for batch",
        "trainer waits",
        "engines idle",
        "staleness",
        "GPU-hours",
    )
    console = table_console()
    console.print(
        table(
            f"{STEPS} steps simulated; response lengths deviate by {spread:.0%} of their mean",
            columns,
            rows,
        )
    )
    if not alternatives:
        console.print("no layout with engines fits: see rlrun plan --sweep")


def _layout(candidate: Candidate) -> str:
    spec, plan = candidate.job.spec, candidate.job.plan
    degrees = [(name, getattr(spec.trainer.parallel, name)) for name in _DEGREES]
    mesh = " × ".join(f"{name} {degree}" for name, degree in degrees if degree > 1) or "1 rank"
    if layers := spec.trainer.parallel.pipeline_layers:
        mesh += f" (layers {', '.join(map(str, layers))})"
    policy = spec.trainer.parallel.reshard_after_forward
    mesh += {"default": "", "always": ", layers gathered twice", "never": ", layers kept gathered"}[policy]
    mesh += "".join(f", {key.removeprefix('trainer.')} {value}" for key, value in candidate.savings.items())
    size = f" of {spec.engine.tensor} GPUs" if spec.engine.tensor > 1 else ""
    if plan.colocated:
        return f"{mesh}, colocated{f', engines{size}' if size else ''}"
    return f"{mesh} + {len(plan.engines)} engines{size}"


def _phases(candidate: Candidate, names: Sequence[str]) -> list[str]:
    """Returns the memory of each named phase; "" for one that the layout does not have."""
    sizes = {phase.name: format_bytes(phase.bytes) for phase in candidate.sizing.phases}
    return [sizes.get(name, "") for name in names]


def _set_options(candidate: Candidate) -> str:
    values = {
        key: f"{{{', '.join(f'{name} = {as_toml(setting)}' for name, setting in value.items())}}}"
        if isinstance(value, dict)
        else as_toml(value).strip('"')
        for key, value in candidate.settings.items()
    }
    return " ".join(f"--set '{key}={value}'" for key, value in values.items())


def _distinct(fitting: Sequence[Candidate]) -> list[Candidate]:
    """Returns the first candidate of each mesh and placement: others differ in how layers are gathered, in
    the size of engines, or in settings that save memory.
    """
    first: dict[object, Candidate] = {}
    for candidate in fitting:
        parallel = candidate.job.spec.trainer.parallel
        degrees = tuple(getattr(parallel, name) for name in _DEGREES)
        first.setdefault((degrees, candidate.job.plan.colocated), candidate)
    return list(first.values())[:_SHOWN]


def _table_note(omitted: int) -> str:
    """Returns a note on the layouts that the table omits, and on its order."""
    more = f"{omitted} slower layouts and variants are not shown (--json has all); " if omitted else ""
    order = "among layouts within 2 % of each other, those with fewer kinds of parallelism come first"
    return f"{more}{order}"


def _price(hours: float | None, price: float | None) -> tuple[str, ...]:
    if not price:
        return ()
    return ("" if hours is None else f"{hours * price:,.2f}",)


def _hours(hours: float | None) -> str:
    return "" if hours is None else show_hours(hours)


def _sweep_row(candidate: Candidate) -> dict[str, Any]:
    return {
        "settings": candidate.settings,
        "fits": candidate.fits,
        "bytes": {phase.name: phase.bytes for phase in candidate.sizing.phases},
        "step_seconds": candidate.sizing.estimate.step_seconds,
        "device_hours": candidate.sizing.estimate.device_hours,
        "warnings": candidate.sizing.warnings,
    }


def _simulation_row(alternative: Alternative) -> dict[str, Any]:
    outcome = {name: getattr(alternative.outcome, name) for name in alternative.outcome.__slots__}
    return (
        {"settings": alternative.candidate.settings, "max_staleness": alternative.max_staleness}
        | outcome
        | {"device_hours": alternative.device_hours}
    )
