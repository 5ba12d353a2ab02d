"""Commands that launchers write into their scripts, and calls of schedulers' own tools."""

import shlex
import subprocess
from collections.abc import Iterator, Sequence

from rlrun.plugins.submission import SchedulerError, Submission

_SECONDS = 60.0
"""Deadline for a scheduler's tool."""


def rlrun_command(job: Submission, *words: str) -> str:
    """Returns a shell command that runs rlrun on a node; words that are to be expanded are already quoted."""
    return " \\\n    ".join([f"{shlex.quote(job.python)} -P -m rlrun {words[0]}", *words[1:]])


def attempt_words(job: Submission) -> list[str]:
    """Returns the words of `rlrun attempt` that no launcher varies."""
    return [
        f"attempt {shlex.quote(str(job.folder))}",
        f"--nodes={job.nodes}",
        f"--idle-attempts={job.idle_attempts}",
    ]


def preparation(job: Submission) -> Iterator[str]:
    """Yields the lines of a script that come before rlrun: variables, then the set-up commands."""
    yield from (f"export {name}={shlex.quote(value)}" for name, value in job.environment.items())
    yield from job.setup


def call_tool(command: Sequence[str]) -> str:
    """Returns what a scheduler's tool prints. Raises SchedulerError, with its own message, if it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS)
    except FileNotFoundError:
        raise SchedulerError(
            f"{command[0]} is not installed here: run this command where the scheduler's tools are"
        ) from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(f"{command[0]} did not answer within {_SECONDS:g} s") from None
    if done.returncode:
        message = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise SchedulerError(f"{shlex.join(command)} failed: {message}")
    return done.stdout.strip()
