"""One process of an environment: it is started, called and killed here. Its program is `worker.py`."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import util
from pathlib import Path
from typing import IO, Any

from rlrun.models.json_files import parse_json
from rlrun.plugins.environments import worker
from rlrun.plugins.failures import Failure, InfrastructureError, PolicyError
from rlrun.plugins.registry import PluginError, checked_params, find
from rlrun.plugins.rollouts.agent.command_agent import running_programs
from rlrun.plugins.rollouts.agent.program_limits import ProgramLimits
from rlrun.plugins.rollouts.agent.program_watch import WatchedProgram
from rlrun.plugins.types import Row
from rlrun.specs.local_code import is_own_interpreter
from rlrun.specs.sections.data import EnvironmentSpec

START_TIMEOUT = 120.0
"""Seconds that a process may take to import and construct its environment, and to list its tasks."""
_END_TIMEOUT = 10.0
"""Seconds that a process may take to close its environments at the end of a job."""
_MARK = "RLRUN_ENVIRONMENT"
_TAIL = 2000
"""Number of bytes at the end of the error output that a message shows."""


class EnvironmentFailure(RuntimeError):
    """An environment raised, or one of its calls took too long: the execution fails, and is not repeated."""


@dataclass(slots=True)
class _Running:
    """A process that runs, and the calls that wait for its answers."""

    process: asyncio.subprocess.Process
    errors: IO[bytes]
    """Its error output."""
    mark: bytes
    """A variable that only its processes inherit, as `NAME=value`."""
    calls: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    reader: asyncio.Task[None] | None = None
    """Hands answers to their calls; None until the environment is constructed."""

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a line without waiting; a broken pipe shows when the answer is read."""
        stdin = self.process.stdin
        if stdin is not None and not stdin.is_closing():
            stdin.write(json.dumps(message, default=str).encode() + b"\n")

    async def first_line(self) -> bytes:
        """Returns the line that says whether the environment was constructed; b"" if the process ended."""
        assert self.process.stdout is not None, "it is a pipe"
        return await self.process.stdout.readline()

    async def read(self, name: str) -> None:
        """Hands answers to their calls until the process ends; then every call fails."""
        assert self.process.stdout is not None, "it is a pipe"
        how = "its process died"
        try:
            while line := await self.process.stdout.readline():
                answer = parse_json(line)
                call = self.calls.get(answer["call"])
                if call is None or call.done():
                    continue
                if "error" in answer:
                    call.set_exception(error_of(answer, f"{name}: {answer['error']}"))
                else:
                    call.set_result(answer["result"])
        except ValueError as error:  # a line that is too long, or not JSON
            how = f"its process answered what cannot be read ({error})"
        for call in self.calls.values():
            if not call.done():
                message = f"{name}: {how}: {self.last_errors()}"
                call.set_exception(InfrastructureError(message, Failure.PREEMPTED))

    async def end(self, seconds: float) -> None:
        """Lets the process close its environments, for at most this long."""
        assert self.process.stdin is not None, "it is a pipe"
        self.process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.process.wait()

    async def kill(self) -> None:
        """Kills the process and all processes that it started, also those in sessions of their own."""
        program = WatchedProgram(self.process.pid, ProgramLimits(), (), mark=self.mark)
        await asyncio.to_thread(program.end)
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        running_programs.discard(self.process.pid)
        if self.reader is not None:
            await self.reader
        self.errors.close()

    def last_errors(self) -> str:
        """Returns the last lines of the error output."""
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - _TAIL))
        return _last_lines(self.errors.read())


class EnvironmentProcess:
    """A process with one environment, which many executions share."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        """Raises PluginError for a plugin or an interpreter that does not exist."""
        self.spec = spec
        self._name = f"environment {spec.type}"
        self._command = command(spec)
        self._setup = setup(spec)
        self._running: _Running | None = None
        self._starting: asyncio.Task[_Running] | None = None
        self._number = 0
        self.load = 0
        """Number of executions in this process."""

    @property
    def pid(self) -> int | None:
        """The id of the process; None while it does not run."""
        return None if self._running is None else self._running.process.pid

    async def call(self, method: str, seconds: float | None, **arguments: Any) -> Any:
        """Returns the result of a method of the worker; starts the process first if it does not run.

        Raises EnvironmentFailure if the environment raises, or the call takes longer than `seconds` (None: no
        limit), after which the process is killed; the environment's own InfrastructureError or PolicyError;
        and InfrastructureError if the process cannot start or dies.
        """
        running = await self._started()
        self._number += 1
        number, answer = self._number, asyncio.get_running_loop().create_future()
        running.calls[number] = answer
        running.send({"call": number, "method": method, "arguments": arguments})
        try:
            async with asyncio.timeout(seconds) as deadline:
                return await answer
        except TimeoutError:
            if not deadline.expired():
                raise
            await self._kill(running)
            message = f"{method} took longer than {seconds:g} s (step_timeout), so its process was killed"
            raise EnvironmentFailure(f"{self._name}: {message}") from None
        finally:
            running.calls.pop(number, None)

    def tell(self, method: str, **arguments: Any) -> None:
        """Calls a method of the worker without waiting for it, if the process runs."""
        if self._running is not None:
            self._number += 1
            self._running.send({"call": self._number, "method": method, "arguments": arguments})

    async def stop(self) -> None:
        """Kills the process and all processes that it started."""
        if self._running is not None:
            await self._kill(self._running)

    async def close(self) -> None:
        """Ends the process, which closes its environments first if it does not hang."""
        if self._running is not None:
            await self._running.end(_END_TIMEOUT)
            await self.stop()

    async def _kill(self, running: _Running) -> None:
        """Kills a process; a call that begins meanwhile starts the next one."""
        if self._running is running:
            self._running = None
            await running.kill()

    async def _started(self) -> _Running:
        """Returns the process when its environment is constructed; all that wait share one start."""
        running = self._running
        if running is not None and running.reader is not None and not running.reader.done():
            return running
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start())
        return await asyncio.shield(self._starting)

    async def _start(self) -> _Running:
        await self.stop()
        errors = tempfile.TemporaryFile()  # noqa: SIM115 open while the process runs
        name = secrets.token_hex(8)
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            env=environment_variables(self.spec) | {_MARK: name},
            limit=worker.LINE_BYTES,
            start_new_session=True,
        )
        running_programs.add(process.pid)
        self._running = running = _Running(process, errors, f"{_MARK}={name}".encode())
        running.send(self._setup)
        why = f"was not constructed within {START_TIMEOUT:g} s"
        try:
            async with asyncio.timeout(START_TIMEOUT):
                line = await running.first_line()
            answer: dict[str, Any] = parse_json(line) if line else {}
            why = answer.get("problem", f"its process ended while it started: {running.last_errors()}")
        except TimeoutError:
            answer = {}
        if "ready" not in answer:
            await self._kill(running)
            raise InfrastructureError(f"{self._name}: {why}", Failure.SANDBOX)
        running.reader = asyncio.create_task(running.read(self._name))
        return running


def error_of(answer: Mapping[str, Any], message: str) -> Exception:
    """Returns the error that an environment raised, with its type where it has one."""
    failure = answer.get("failure")
    if failure == Failure.POLICY:
        return PolicyError(message, float(answer["reward"]))
    if failure in list(Failure) and Failure(failure).is_infrastructure:
        return InfrastructureError(message, Failure(failure))
    return EnvironmentFailure(message)


def read_tasks(spec: EnvironmentSpec) -> list[Row]:
    """Returns the environment's tasks, from a process that ends afterwards.

    Raises PluginError, with the environment's message, if it has none or cannot be constructed.
    """
    call = {"call": 0, "method": "tasks", "arguments": {}}
    lines = "".join(json.dumps(line, default=str) + "\n" for line in (setup(spec), call))
    try:
        ended = subprocess.run(
            command(spec),
            input=lines.encode(),
            capture_output=True,
            timeout=START_TIMEOUT,
            env=environment_variables(spec),
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PluginError(f"environment {spec.type}: no tasks within {START_TIMEOUT:g} s") from None
    answers: list[dict[str, Any]] = [parse_json(line) for line in ended.stdout.splitlines()]
    last: dict[str, Any] = answers[-1] if answers else {"problem": _last_lines(ended.stderr)}
    if problem := last.get("problem") or last.get("error"):
        raise PluginError(f"environment {spec.type}: {problem}")
    if "result" not in last:
        raise PluginError(f"environment {spec.type}: its process died: {_last_lines(ended.stderr)}")
    return [Row(**row) for row in last["result"]]


def command(spec: EnvironmentSpec) -> list[str]:
    """Returns the command line of the process. Raises PluginError if the interpreter does not exist."""
    python = spec.python or sys.executable
    if shutil.which(python) is None:
        raise PluginError(f"environment {spec.type}: there is no interpreter {python}; correct `python`")
    return [python, "-P", worker.__file__]


def setup(spec: EnvironmentSpec) -> dict[str, Any]:
    """Returns the first line for the worker. Raises PluginError for a plugin or parameters that are wrong."""
    target = find("environments", spec.type).target
    params = checked_params("environments", spec.type, spec.params)
    tops = {"rlrun", *(() if ".py:" in target else (target.partition(".")[0].partition(":")[0],))}
    modules = {} if _is_own(spec) else {top: _file_of(top) for top in tops}
    return {
        "parent": os.getpid(),
        "target": target,
        "params": params.model_dump(mode="json"),
        "modules": modules,
    }


def environment_variables(spec: EnvironmentSpec) -> dict[str, str]:
    """Returns this process's variables without Ray's token; for another Python, without those of this one."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_TOKEN")}
    if _is_own(spec):
        own["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # "" is the current folder
    else:
        for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            own.pop(name, None)
    return own | {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}


def _is_own(spec: EnvironmentSpec) -> bool:
    return spec.python is None or is_own_interpreter(spec.python)


def _file_of(module: str) -> str:
    found = util.find_spec(module)
    assert found is not None and found.origin is not None, f"{module} has a plugin, so it is a module"
    return str(Path(found.origin))


def _last_lines(errors: bytes) -> str:
    lines = errors[-_TAIL:].decode(errors="replace").strip().splitlines()
    return " | ".join(lines[-3:]) or "it printed nothing"
