"""Checks of the other files of a run's folder: its spec, state, checkpoints and logs."""

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from rlrun.converters.folders.checksums import find_problems
from rlrun.models.foreign_files import open_regular
from rlrun.runner.audit.audited_run import AuditedRun
from rlrun.runner.audit.violation import NotChecked, Result, Violation
from rlrun.runner.checkpoints.folder import checkpoints_in
from rlrun.runner.checkpoints.reading import DamagedCheckpoint, read_driver, recorded_checksums
from rlrun.runner.records.metrics import is_due

ERROR = re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d (ERROR|CRITICAL) (?P<message>.*)")
"""A line of a log (rlrun.runner.host.log_lines) that reports an error."""


def spec(run: AuditedRun) -> Iterator[Result]:
    """The resolved spec has the values that the launch was given."""
    given = run.lock.get("given")
    if not isinstance(given, dict):
        raise NotChecked("an earlier version of rlrun wrote the lock, without what was given")
    for key, value, resolved in _compared(given, run.lock["spec"]):
        message = f"{key} is {resolved!r}, and the launch was given {value!r}"
        yield None if value == resolved else Violation(message, file="spec.lock.json")


def _compared(given: Mapping[str, Any], resolved: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields each value that was given, with its key and the resolved value."""
    for name, value in given.items():
        own = resolved.get(name) if isinstance(resolved, Mapping) else None
        if isinstance(value, Mapping):
            yield from _compared(value, own, f"{prefix}{name}.")
        elif not (isinstance(value, list) and any(isinstance(each, Mapping) for each in value)):
            yield f"{prefix}{name}", value, own


def ending(run: AuditedRun) -> Iterator[Result]:
    """The run did not fail, and has all its steps if it says that it is done."""
    state = run.state
    if not state:
        raise NotChecked("the run has no state.json")
    status, step, steps = state["status"], state["step"], state["steps"]
    if status in ("failed", "died"):
        yield Violation(
            f"it {status} in step {step + 1}: {state['error'] or 'no error is recorded'}",
            step,
            file="state.json",
        )
    elif status == "done" and steps is not None and step < steps:
        yield Violation(f"it says done, with {step} of {steps} steps", step, file="state.json")
    else:
        yield None


def checkpoints(run: AuditedRun) -> Iterator[Result]:
    """Each checkpoint has all its files as they were written, and those that are due are there."""
    found = checkpoints_in(run.folder.checkpoints)
    for step, path in found.items():
        shown = f"checkpoints/{path.name}"
        try:
            digests = recorded_checksums(path)
            driver = read_driver(path)
            problems = {} if digests is None else find_problems(path, digests)
        except DamagedCheckpoint as error:
            yield Violation(str(error), step, file=shown)
            continue
        stated = driver.get("progress", {}).get("step")
        if problems:
            name, problem = next(iter(sorted(problems.items())))
            yield Violation(f"{len(problems)} files are damaged: {problem}", step, file=f"{shown}/{name}")
        elif stated != step:
            yield Violation(f"its driver.json is of step {stated}", step, file=f"{shown}/driver.json")
        else:
            yield None
    if (missing := _missing(run, found)) is not None:
        yield Violation(
            f"there is no checkpoint of step {missing}, which was due", missing, file="checkpoints"
        )


def _missing(run: AuditedRun, found: Mapping[int, Any]) -> int | None:
    """Returns the newest step that must have a checkpoint and does not."""
    last, interval = max(run.steps, default=0), run.spec.checkpoint.interval
    if run.spec.debug.mode == "eval":
        return None
    if run.state.get("status") == "done":
        return last if last and last not in found else None
    # a run that goes on, or died, may be writing the newest one
    due = [step for step in range(1, last) if is_due(step - 1, interval)]
    return due[-1] if due and due[-1] not in found and max(found, default=0) < due[-1] else None


def logs(run: AuditedRun) -> Iterator[Result]:
    """No log has an error."""
    for path in sorted(run.folder.logs.glob("*.log")):
        with open_regular(path) as file:
            lines = (line.decode(errors="replace") for line in file)
            errors = ((number, found) for number, line in enumerate(lines, 1) if (found := ERROR.match(line)))
            shown: list[Result] = [
                Violation(found["message"].strip()[:300], file=f"logs/{path.name}:{number}")
                for number, found in islice(errors, 3)
            ]
        yield from shown or [None]
