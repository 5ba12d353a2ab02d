"""`rlrun status`: shows the progress of one run."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlrun.cli.arguments import AsJson, RunName, RunsDir
from rlrun.runner.host.printed_text import one_line, print_text

if TYPE_CHECKING:
    from rlrun.runner.records.diagnosis import Diagnosis
    from rlrun.runner.records.run_folder import RunFolder
    from rlrun.runner.records.run_processes import RunProcess
    from rlrun.runner.records.run_time import RunTime

Processes = Annotated[
    bool,
    typer.Option("--processes", help="Also ask each process of the run on this host where it is now."),
]


def command(
    name: RunName = None,
    runs_dir: RunsDir = Path("runs"),
    processes: Processes = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's status, step and latest metrics."""
    from rlrun.cli.run_states import find_run
    from rlrun.cli.submitted import find_submitted
    from rlrun.runner.records.diagnosis import read_diagnosis
    from rlrun.runner.records.run_processes import read_processes

    submitted = find_submitted(runs_dir, name)
    scheduler = None if submitted is None else submitted.describe(submitted.state)
    if submitted is not None and not submitted.folder.run.state.exists():
        about = {"name": name, "folder": None, "status": submitted.state.phase, "scheduler": scheduler}
        print_text(json.dumps(about) if as_json else f"{name}: not started; {scheduler}")
        return
    run = find_run(runs_dir, name)
    state = run.current_state()
    diagnosis = read_diagnosis(run)
    found = asyncio.run(read_processes(run)) if processes else None
    if as_json:
        more: dict[str, Any] = {} if scheduler is None else {"scheduler": scheduler}
        more |= {} if found is None else {"on_this_host": [asdict(process) for process in found]}
        print(json.dumps({"name": run.name, "folder": str(run.path), **state, **asdict(diagnosis)} | more))
        return
    _print_state(run, state, scheduler)
    _print_diagnosis(diagnosis)
    if found is not None:
        _print_processes(found)
    metrics = {one_line(name): value for name, value in state["metrics"].items()}
    width = max(map(len, metrics), default=0)
    for metric, value in sorted(metrics.items()):
        print_text(f"  {metric:{width}}  {_shown(metric, value)}")


def _print_state(run: "RunFolder", state: Mapping[str, Any], scheduler: str | None) -> None:
    from rlrun.runner.records.console import format_duration
    from rlrun.runner.records.driver_log import current_phases
    from rlrun.runner.records.run_time import RunTime

    steps = f"step {state['step']} of {'?' if state['steps'] is None else state['steps']}"
    print_text(f"{one_line(run.name)}: {state['status']}, {steps}{_time_left(state)}  ({run.path})")
    started, updated = (datetime.fromisoformat(state[name]).astimezone() for name in ("started", "updated"))
    ago = format_duration(max((datetime.now(UTC) - updated).total_seconds(), 0.0))
    process = f"process {state['pid']} on {state['host']}"
    times = f"started {started:%Y-%m-%d %H:%M:%S}, updated {updated:%Y-%m-%d %H:%M:%S} ({ago} ago)"
    print_text(f"{times}, {process}")
    if scheduler is not None:
        print_text(scheduler)
    if state["ranks"] is not None:
        print_text("trainer ranks: {} of {}".format(*state["ranks"]))
    if state["engines"] is not None:
        print_text("engines: {} of {}".format(*state["engines"]))
    if state["run_time"] is not None and (run_time := RunTime.model_validate(state["run_time"])).useful:
        print_text(f"goodput: {_shares(run_time)}")
    if state["status"] == "running" and not state["metrics"] and (phases := current_phases(run)):
        print_text(f"starting: {phases}")
    if state["error"]:
        code = state["error_code"]
        print_text(f"error: {state['error']}" + (f" [{code}]\nsee rlrun explain {code}" if code else ""))
    if state["status"] in ("died", "failed", "interrupted"):
        from rlrun.runner.checkpoints.folder import newest_step
        from rlrun.runner.job.stopping import resume_hint

        print_text(f"logs: rlrun logs {run.argument}")
        print_text(resume_hint(state["step"], newest_step(run.checkpoints), run.argument))


def _shares(run_time: "RunTime") -> str:
    """Returns the useful share of a run's time, and what took at least a thousandth, the most first."""
    from rlrun.runner.records.console import format_duration

    lost = sorted(run_time.lost().items(), key=lambda item: item[1], reverse=True)
    shares = [(seconds / run_time.total, what) for what, seconds in lost]
    parts = [f"{100 * share:.1f} % {what}" for share, what in shares if share >= 0.001]
    useful = f"{100 * run_time.goodput:.1f} % of {format_duration(run_time.total)}"
    return f"{useful}; lost: {', '.join(parts)}" if parts else useful


def _print_diagnosis(diagnosis: "Diagnosis") -> None:
    if diagnosis.bottleneck is not None:
        print_text(f"speed: {diagnosis.bottleneck.sentence}")
    if diagnosis.losses is not None:
        print_text(f"lost: {diagnosis.losses.sentence}")
    for alert in diagnosis.alerts:
        print_text(alert.line)


def _print_processes(processes: Sequence["RunProcess"]) -> None:
    from rlrun.runner.planning.hardware import format_bytes

    print_text("processes on this host:" if processes else "no process of the run is on this host")
    width = max((len(process.log) for process in processes), default=0)
    for process in processes:
        memory = format_bytes(process.memory)
        where = one_line(process.where)
        print_text(f"  {one_line(process.log):{width}}  process {process.pid}, {memory}: {where}")


def _shown(metric: str, value: float | None) -> str:
    from rlrun.runner.planning.hardware import format_bytes

    if value is None:
        return "none"
    is_size = metric.startswith("perf/peak_memory/") or metric.endswith("_bytes")
    return format_bytes(value) if is_size else f"{value:.6g}"


def _time_left(state: Mapping[str, Any]) -> str:
    """Returns how long a running job will still take, as its driver estimated at the end of the last step."""
    from rlrun.runner.records.console import format_duration

    seconds = state["seconds_left"]
    if state["status"] != "running" or not seconds:
        return ""
    return f", about {format_duration(seconds)} left"
