"""Runs an agent that is a program: it reads the task from standard input and prints its result last."""

import asyncio
import json
import os
import resource
import secrets
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import IO, Any
from urllib.parse import urlsplit

from rlrun.models.json_files import parse_json
from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.failures import Failure, InfrastructureError, PolicyError
from rlrun.plugins.launch_variable import LAUNCH_VARIABLE
from rlrun.plugins.rollouts.agent.program_limits import MIB, LimitExceeded, ProgramLimits
from rlrun.plugins.rollouts.agent.program_sandbox import HOST, Contained, Program, ProgramSandbox, contained
from rlrun.plugins.rollouts.agent.program_watch import ProgramWatch, WatchedProgram

_TAIL = 64 * 1024
"""Number of bytes at the end of the output in which the last line is looked for first."""
_CLEAN_UP_SECONDS = 30.0
_PASSED = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM")
"""Variables that are passed to every program, besides those that begin with LC_. They hold no secrets."""

_POLICY_STATUS = os.EX_DATAERR
_FAILURES: Mapping[int, Failure] = {
    os.EX_UNAVAILABLE: Failure.SERVICE,
    os.EX_OSERR: Failure.SANDBOX,
    os.EX_OSFILE: Failure.IMAGE,
    os.EX_TEMPFAIL: Failure.PREEMPTED,
    **{
        status: Failure.PREEMPTED
        for number in (signal.SIGKILL, signal.SIGTERM)
        for status in (-number, 128 + number)
    },
}
"""Failures of the infrastructure by a program's exit status: those of sysexits.h, and deaths by a signal from
outside, which shells and container runtimes report as 128 + its number."""
_FILE_TOO_LARGE = (-signal.SIGXFSZ, 128 + signal.SIGXFSZ)

running_programs: set[int] = set()
"""Ids of the programs that run now; each has its own session."""


async def run_command(
    command: Sequence[str],
    task: AgentTask,
    limits: ProgramLimits,
    watch: ProgramWatch,
    passed: Sequence[str] = (),
    *,
    sandbox: ProgramSandbox = HOST,
) -> Mapping[str, Any]:
    """Returns the JSON object in the program's last line of output; an empty table if that is not an object.

    The program gets the endpoint's address and key as OpenAI's and Anthropic's SDKs read them, a few usual
    variables of this process and those that `passed` names. It has its own session and runs in an empty
    folder. When it ends or this call is cancelled, all its processes are killed. Raises the error of
    `error_of_status` if its exit status is not 0, LimitExceeded if it exceeded a limit, and
    InfrastructureError if the host cannot start it.
    """
    environment = environment_for(task, os.environ, passed)
    with ExitStack() as stack:
        # Files, not pipes: a daemon that holds a pipe open, or never reads it, would hold up the execution.
        given, out, err = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        given.write(json.dumps(task.as_json(), default=str).encode())
        given.seek(0)
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        name = f"rlrun-{secrets.token_hex(8)}"
        started = contained(sandbox, Program(command, folder, environment, limits, name))
        streams = {"stdin": given, "stdout": out, "stderr": err}
        process = await _start(started.command, **streams, env=started.environment, cwd=folder)
        running_programs.add(process.pid)
        program = WatchedProgram(process.pid, limits, (out.fileno(), err.fileno()), folder, _mark(task))
        _limit_files(process.pid, limits)
        try:
            with watch.watching(program):
                await process.wait()
        finally:
            try:
                await asyncio.to_thread(program.end)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
                running_programs.discard(process.pid)
                if started.clean_up:
                    await asyncio.to_thread(_clean_up, started)
        if program.problem:
            raise LimitExceeded(f"{command[0]} {program.problem}")
        info = _parse_reward_line(_last_line(out, limits.output * MIB))
        if process.returncode:
            raise error_of_status(command[0], process.returncode, _last_line(err, _TAIL), info)
        return info


def _clean_up(started: Contained) -> None:
    """Removes what outlives the process on the host; it is usually gone already."""
    with suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(
            started.clean_up,
            env=started.environment,
            capture_output=True,
            timeout=_CLEAN_UP_SECONDS,
            check=False,
        )


def _mark(task: AgentTask) -> bytes:
    """Returns the variable that only the processes of this program inherit."""
    return f"OPENAI_API_KEY={task.api_key}".encode()


def _limit_files(process: int, limits: ProgramLimits) -> None:
    """Limits what a program may write. It asks the policy later, so that all that follows has the limits."""
    with suppress(ProcessLookupError):
        for kind, limit in ((resource.RLIMIT_FSIZE, limits.file * MIB), (resource.RLIMIT_CORE, 0)):
            _, hard = resource.prlimit(process, kind)
            lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.prlimit(process, kind, (lowest, lowest))


async def _start(command: Sequence[str], **options: Any) -> asyncio.subprocess.Process:
    try:
        return await asyncio.create_subprocess_exec(*command, start_new_session=True, **options)
    except (FileNotFoundError, PermissionError):  # a mistake in the spec, which another try does not mend
        raise
    except OSError as error:  # no memory, processes or descriptors left
        raise InfrastructureError(f"{command[0]} cannot be started: {error}", Failure.SANDBOX) from error


def error_of_status(program: str, status: int, last_line: str, info: Mapping[str, Any]) -> Exception:
    """Returns the error of a program that ended with a status other than 0.

    `last_line` is the last line of its error output, and `info` the object that it printed. Statuses whose
    meaning is known give a PolicyError or an InfrastructureError, all others a RuntimeError.
    """
    message = f"{program} ended with status {status}: {last_line}"
    if status == _POLICY_STATUS:
        reward = info.get("reward")
        return PolicyError(message, reward if isinstance(reward, int | float) else 0.0)
    if status in _FILE_TOO_LARGE:
        return LimitExceeded(f"{program} wrote a file larger than limits.file allows")
    if status in _FAILURES:
        return InfrastructureError(message, _FAILURES[status])
    return RuntimeError(message)


def environment_for(task: AgentTask, own: Mapping[str, str], passed: Sequence[str]) -> dict[str, str]:
    """Returns the environment variables of an agent's program.

    They are chosen from a list of allowed names. A list of forbidden names would not be safe: the driver's
    environment holds keys of hubs, trackers and clouds, and Ray's token, under names that cannot be foreseen.
    """
    names = {*_PASSED, LAUNCH_VARIABLE, *passed, *(name for name in own if name.startswith("LC_"))}
    environment = {name: own[name] for name in sorted(names) if name in own}
    environment |= {"OPENAI_BASE_URL": task.base_url, "OPENAI_API_KEY": task.api_key}
    environment["ANTHROPIC_BASE_URL"] = task.base_url.removesuffix("/v1")  # Anthropic's SDKs add it
    environment["ANTHROPIC_API_KEY"] = task.api_key
    for name, address in task.engines.items():
        environment[f"RLRUN_ENGINE_{name.upper().replace('-', '_')}_URL"] = address.base_url
    host = urlsplit(task.base_url).hostname
    for name in ("no_proxy", "NO_PROXY"):  # the endpoint is on this host: never use a proxy for it
        environment[name] = ",".join(filter(None, [environment.get(name), host]))
    return environment


def _last_line(file: IO[bytes], most: int) -> str:
    """Returns the last line that is not empty, at most the last `most` bytes of the file."""
    length, size = min(most, file.seek(0, os.SEEK_END)), _TAIL
    while True:  # weights of all tokens make a long line
        file.seek(-min(size, length), os.SEEK_END)
        end = file.read().strip()
        if b"\n" in end or size >= length:
            return end.rpartition(b"\n")[2].decode(errors="replace")
        size *= 4


def _parse_reward_line(line: str) -> Mapping[str, Any]:
    try:
        value = parse_json(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
