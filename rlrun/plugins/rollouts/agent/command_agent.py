"""An agent that is a program: the task on its standard input, what it found on its last line of output."""

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any

from rlrun.plugins.agent_task import AgentTask

_TAIL = 64 * 1024
"""Bytes of output that are looked at."""
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM")
"""Variables that every program gets, and those that begin with LC_. They hold no secrets."""


async def run_command(
    command: Sequence[str], task: AgentTask, passed: Sequence[str] = ()
) -> Mapping[str, Any]:
    """What the program found: its last line of output, where that is a JSON object.

    It has OPENAI_BASE_URL and OPENAI_API_KEY, a process group of its own, and an empty folder to work in, and
    of this process's variables the usual ones and those that `passed` names. When this is cancelled it is
    killed with all that it started. RuntimeError where it ends with another status than 0, with its last line
    of error output.
    """
    environment = environment_for(task, os.environ, passed)
    with ExitStack() as stack:
        out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(2))
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=out,
            stderr=err,
            env=environment,
            cwd=stack.enter_context(tempfile.TemporaryDirectory()),
            start_new_session=True,
        )
        try:
            await process.communicate(json.dumps(task.as_json(), default=str).encode())
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        if process.returncode != 0:
            raise RuntimeError(f"{command[0]} ended with status {process.returncode}: {_last_line(err)}")
        return _found(_last_line(out))


def environment_for(task: AgentTask, own: Mapping[str, str], passed: Sequence[str]) -> dict[str, str]:
    """The variables of an agent's program.

    A list of what it may have, not of what it may not: a driver's environment holds keys of hubs, trackers
    and clouds, and Ray's token, under names that nobody can foresee.
    """
    names = {*_PASSED, *passed, *(name for name in own if name.startswith("LC_"))}
    environment = {name: own[name] for name in sorted(names) if name in own}
    environment |= {"OPENAI_BASE_URL": task.base_url, "OPENAI_API_KEY": task.api_key}
    for name in ("no_proxy", "NO_PROXY"):  # the endpoint is on this host, whatever else is reached by a proxy
        environment[name] = ",".join(filter(None, [environment.get(name), "127.0.0.1"]))
    return environment


def _last_line(file: IO[bytes]) -> str:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - _TAIL))
    return file.read().decode(errors="replace").strip().rpartition("\n")[2]


def _found(line: str) -> Mapping[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
