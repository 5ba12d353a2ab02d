"""Reads state.json, in which a run reports its progress.

The file may have been copied, shared or damaged. It is checked whenever it is read, and its contents are only
displayed: no file is removed on its word.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, FiniteFloat, ValidationError

from rlrun.models.foreign_files import read_bytes
from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.host.printed_text import printable
from rlrun.runner.host.process_identity import MAX_PID, Owner
from rlrun.runner.records.run_time import RunTime
from rlrun.specs.paths import display_path

SILENT_SECONDS = 300.0
"""A run on another host counts as running while its state is not older than this."""
_MAX_BYTES = 4 << 20
_MAX_STEPS = 1 << 53
_YEARS = range(2000, 9000)
"""Years that are valid in every time zone."""


def _timestamp(text: str) -> str:
    when = datetime.fromisoformat(text)
    if when.tzinfo is None or when.year not in _YEARS:
        raise ValueError("not a date and time with a time zone")
    return text


Text = Annotated[str, AfterValidator(printable)]
Count = Annotated[int, Field(ge=0, le=1 << 32)]
Timestamp = Annotated[str, AfterValidator(_timestamp)]


class State(Owner):
    """The contents of state.json, with the identity of the process that wrote it."""

    host: Text
    status: Literal["running", "done", "failed", "interrupted"]
    started: Timestamp
    updated: Timestamp
    step: int = Field(ge=0, le=_MAX_STEPS)
    steps: int | None = Field(ge=0, le=_MAX_STEPS)
    metrics: dict[Text, FiniteFloat | None]
    seconds_left: Annotated[FiniteFloat, Field(ge=0)] | None = None
    """How long the remaining steps will take, estimated at the end of the last one."""
    error: Text | None
    error_code: Text | None = None
    """The kind of error, which `rlrun explain` explains."""
    processes: dict[Text, Annotated[int, Field(ge=1, le=MAX_PID)] | None] = Field(default_factory=dict)
    """Ids of the job's processes, by name, for people to look at."""
    engines: tuple[Count, Count] | None = None
    """How many elastic engines serve the policy, and how many it may have; None if they are not elastic."""
    ranks: tuple[Count, Count] | None = None
    """How many elastic trainer ranks the launch has, and how many it may have; None without elastic ranks."""
    run_time: RunTime | None = None
    """What the time since the first launch was used for; None in states of older versions."""
    scratch: Text | None = None
    """The job's folder among temporary files, for people to look at."""


def read_state(path: Path) -> dict[str, Any]:
    """Returns a state; empty if the file does not exist. Raises RunFolderError for any other file."""
    try:
        return State.model_validate_json(read_bytes(path, _MAX_BYTES)).model_dump()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunFolderError(
            f"{display_path(path)} does not hold a run's state ({_reason(error)}); move it away"
        ) from None


def is_alive(state: Mapping[str, Any]) -> bool:
    """Returns whether a run's process is alive; on another host, whether it wrote its state recently."""
    if state.get("status") != "running":
        return False
    owner = Owner.model_validate({name: state[name] for name in Owner.model_fields})
    if owner.is_here:
        return owner.is_running
    silence = datetime.now(UTC) - datetime.fromisoformat(state["updated"])
    return abs(silence.total_seconds()) < SILENT_SECONDS


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        return printable(f"{where}: {first['msg']}" if where else first["msg"])[:200]
    return str(error.strerror if isinstance(error, OSError) else error)
