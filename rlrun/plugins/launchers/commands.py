"""Commands that launchers write into their scripts, and calls of schedulers' own tools."""

import os
import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence

from rlrun.plugins.submission import SchedulerError, Submission

_SECONDS = 60.0
"""Deadline for a scheduler's tool."""


def rlrun_command(job: Submission, *words: str) -> str:
    """Returns a shell command that runs rlrun on a node; words that are to be expanded are already quoted."""
    python = shlex.quote(job.python or sys.executable)
    return " \\\n    ".join([f"{python} -P -m rlrun {words[0]}", *words[1:]])


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


def check_mounted(job: Submission, mounts: Collection[str], hosts: str) -> None:
    """Raises ValueError if `hosts`, which have only mounted paths, would lack a folder of the job."""
    for folder in (job.folder, job.working_folder):
        if not any(folder.is_relative_to(path) for path in mounts):
            raise ValueError(
                f"{folder} is below no path of submit.mounts ({', '.join(mounts)}), so that the {hosts} "
                "would not have it"
            )


def secret_values(job: Submission) -> dict[str, str]:
    """Returns the job's secrets from this environment. Raises ValueError if it lacks some."""
    if missing := [name for name in job.secrets if name not in os.environ]:
        raise ValueError(
            f"submit.secrets: not set in this environment: {', '.join(missing)}; export them first"
        )
    return {name: os.environ[name] for name in job.secrets}


def call_tool(command: Sequence[str], given: str = "", *, seconds: float = _SECONDS) -> str:
    """Returns what a scheduler's tool prints, which reads `given` from its standard input.

    Raises SchedulerError, with the tool's own message, if it fails.
    """
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, text=True, check=False, timeout=seconds
        )
    except FileNotFoundError:
        raise SchedulerError(
            f"{command[0]} is not installed here: run this command where the scheduler's tools are"
        ) from None
    except subprocess.TimeoutExpired:
        raise SchedulerError(f"{command[0]} did not answer within {seconds:g} s") from None
    if done.returncode:
        message = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise SchedulerError(f"{shlex.join(command)} failed: {message}")
    return done.stdout.strip()
