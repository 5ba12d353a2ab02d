"""Starts a command of rlrun in a process of its own, which continues when its starter ends."""

import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from rlrun.runner.contracts.errors import JobError, RunFolderError
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.state import is_alive
from rlrun.specs.safe_python import own_python

Begun = TypeVar("Begun")
_POLL_S = 0.05
_LAST_CHARACTERS = 4000
"""How much of a launch's output is shown if it ends before its run exists."""


def start_detached(
    arguments: Sequence[str], runs_dir: Path, document: str = ""
) -> tuple[RunFolder, "subprocess.Popen[bytes]"]:
    """Runs `rlrun launch` with the arguments; returns as soon as the run's folder exists.

    `document` is the spec that an argument `-` stands for. Signals of this terminal do not reach the process.
    Raises JobError with the launch's output if it ends before its run exists.
    """
    process, folder = start_command(
        ["launch", *arguments],
        document,
        lambda process: _folder_of(process.pid, runs_dir),
        last_characters=_LAST_CHARACTERS,
    )
    return folder, process


def start_command(
    arguments: Sequence[str],
    document: str,
    look: Callable[["subprocess.Popen[bytes]"], Begun | None],
    *,
    last_characters: int = 0,
) -> tuple["subprocess.Popen[bytes]", Begun]:
    """Runs `rlrun` with the arguments; returns the process and the value of `look` as soon as it is not None.

    `document` is the command's standard input. Raises JobError with the command's output if it ends before
    that; `last_characters`: with so many characters of it, 0: with all.
    """
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            own_python("-m", "rlrun", *arguments),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(document.encode())
        process.stdin.close()
        while (begun := look(process)) is None:
            if process.poll() is not None:
                output.seek(0)
                text = output.read().decode(errors="replace").strip().removeprefix("error: ")
                raise JobError(text[-last_characters:])
            time.sleep(_POLL_S)
    return process, begun


def _folder_of(pid: int, runs_dir: Path) -> RunFolder | None:
    """Returns the folder that a launch has claimed; with `--new` its name differs from the spec's."""
    for path in runs_dir.glob("*/state.json"):
        folder = RunFolder(path.parent)
        try:
            state = folder.read_state()
        except RunFolderError:
            continue  # the state of another run is damaged
        if state.get("pid") == pid and is_alive(state):  # an ended run may have had the same process id
            return folder
    return None
