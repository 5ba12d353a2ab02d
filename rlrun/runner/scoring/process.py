"""Runs one reward process: starts it, sends it batches, kills it when a sample takes too long."""

import asyncio
import json
import os
import pickle
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from rlrun.runner.contracts.errors import JobError
from rlrun.runner.host.stacks import where
from rlrun.runner.scoring.protocol import Call, Outcome, RewardSetup, Setup, Shape, Task, schedule
from rlrun.specs.problems.codes import Code
from rlrun.specs.safe_python import own_python
from rlrun.specs.sections.scoring import ScoringSpec

GRACE = 0.05
"""Seconds after a deadline to read an answer that arrived in time, while the event loop was busy."""


class ProcessOutput:
    """The JSON lines that a process writes to its standard output."""

    def __init__(self, stdout: asyncio.StreamReader) -> None:
        self.ended = False
        """The process closed its standard output."""
        self._stdout = stdout
        self._unread: list[bytes] = []
        self._partial_line = b""

    async def next(self, deadline: float) -> dict[str, Any] | None:
        """Returns the next line; None at the end of the output, or at `deadline` (event loop's clock)."""
        while not self._unread:
            data = await self._read(deadline)
            if not data:
                self.ended = data is not None
                return None
            *self._unread, self._partial_line = (self._partial_line + data).split(b"\n")
        answer: dict[str, Any] = json.loads(self._unread.pop(0))
        return answer

    async def _read(self, deadline: float) -> bytes | None:
        """Returns the bytes that arrive by `deadline`, plus GRACE; b"" at the end, None if there are none."""
        for limit in (deadline, asyncio.get_running_loop().time() + GRACE):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(limit):
                    return await self._stdout.read(1 << 16)
        return None


START_TIMEOUT = 60.0
"""Seconds that a process may take to import and build its rewards."""
SLACK = 2.0
"""Seconds after its deadline in which an asynchronous reward has to report that it ran out of time."""
LOG_LINES = 20
LOG_BYTES = 10_000


class ProcessDied(Exception):
    """The process ended during a call; the message says how."""

    def __init__(self, how: str, call: Call | None = None, *, late: bool = False) -> None:
        super().__init__(how)
        self.call = call
        """The call that ended the process; None where several were in flight."""
        self.late = late
        """The process was killed because the call took too long."""


class RewardProcess:
    """A child process that scores batches of samples; `start` restarts it after `stop`."""

    def __init__(self, rewards: Sequence[RewardSetup], scoring: ScoringSpec, log: Path | None = None) -> None:
        """`log` is the file to which the output of the rewards is appended; None discards it."""
        self._setup = Setup(
            tuple(rewards),
            os.getpid(),
            scoring.memory,
            scoring.timeout,
            scoring.concurrency,
        )
        self._timeout = scoring.timeout
        self.environment: Mapping[str, str] = {}
        """Variables added to this process's environment from the next start on."""
        self.shapes: list[Shape] = []
        """How each reward is called; set once the process has started."""
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._answers: ProcessOutput | None = None
        self._is_ready = False

    @property
    def pid(self) -> int | None:
        """The id of the process; None while it does not run."""
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Returns when the rewards are built; JobError, naming plugin and cause, when they cannot be."""
        await self.spawn()
        await self._wait_ready()

    async def spawn(self) -> None:
        """Starts the process without waiting for its rewards, so that it is ready when it is needed."""
        self._is_ready = False
        with self._open_log() as log:
            self._process = await asyncio.create_subprocess_exec(
                *own_python("-c", "from rlrun.runner.scoring.worker import main; main()"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_environment() | dict(self.environment),
                start_new_session=True,
            )
        assert self._process.stdout is not None, "it is a pipe"
        self._answers = ProcessOutput(self._process.stdout)
        self._send(self._setup)

    async def outcomes(self, batch: Sequence[Task]) -> AsyncGenerator[Outcome]:
        """Yields each outcome as it arrives; ProcessDied when a call crashed the process or took too long."""
        if self._process is not None and self._process.returncode is not None:
            await self.stop()  # it died while idle, for which no sample is to blame
        if self._process is None:
            await self.spawn()
        await self._wait_ready()
        calls = schedule(batch, self.shapes)
        self._send(batch)
        for call in calls.sequential:
            seconds = self._timeout * len(call.tasks)
            deadline = asyncio.get_running_loop().time() + seconds
            for _ in call.tasks:
                yield await self._next(deadline, seconds, f"took longer than {seconds:g} s", call)
        longest = max((self._timeout * len(call.tasks) for call in calls.concurrent), default=0.0) + SLACK
        for _ in range(sum(len(call.tasks) for call in calls.concurrent)):
            deadline = asyncio.get_running_loop().time() + longest
            only = calls.concurrent[0] if len(calls.concurrent) == 1 else None
            yield await self._next(deadline, longest, f"did not let go for {longest:g} s", only)

    async def stop(self) -> None:
        """Kills the process and all processes that it started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._process = None

    def log_end(self) -> str:
        """Returns the last lines that the rewards printed, and the path of the whole log."""
        if self._log is None or not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([*lines, f"(whole log: {self._log})"])

    async def _wait_ready(self) -> None:
        if self._is_ready:
            return
        answers = self._reader
        answer = await answers.next(asyncio.get_running_loop().time() + START_TIMEOUT)
        if answer is None:
            how = f"did not build its rewards within {START_TIMEOUT:g} s"
            if answers.ended:
                how = f"{await self._ending()} while it started"
            await self.stop()
            raise JobError(f"the reward process {how}", self.log_end(), code=Code.REWARD)
        if problem := answer.get("problem"):
            await self.stop()
            raise JobError(problem, code=Code.REWARD)
        self.shapes = [Shape(*shape) for shape in answer["shapes"]]
        self._is_ready = True

    async def _where(self) -> str:
        """Returns where the process is, whose stack it writes to its log; "" without a log."""
        if self._log is None or self._process is None:
            return ""
        return f"; {await where(self._process.pid, self._log)}"

    @property
    def _reader(self) -> ProcessOutput:
        assert self._answers is not None, "start() comes first"
        return self._answers

    def _send(self, message: Any) -> None:
        """Sends a message without waiting; a broken pipe shows when the answer is read."""
        assert self._process is not None and self._process.stdin is not None, "start() comes first"
        self._process.stdin.write(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    async def _next(self, deadline: float, seconds: float, late: str, call: Call | None) -> Outcome:
        """Returns the next answer, by `deadline` on the event loop's clock; ProcessDied says why there is
        none.

        Loading a reward that a row names does not count: the sample has `seconds` once it is loaded.
        """
        answers = self._reader
        while True:
            answer = await answers.next(deadline)
            if answer is None:
                how = (
                    await self._ending()
                    if answers.ended
                    else f"{late} (scoring.timeout){await self._where()}"
                )
                await self.stop()
                raise ProcessDied(how, call, late=not answers.ended)
            if "loading" in answer:
                deadline = asyncio.get_running_loop().time() + START_TIMEOUT
            elif "loaded" in answer:
                deadline = asyncio.get_running_loop().time() + seconds
            else:
                return Outcome.of(answer)

    async def _ending(self) -> str:
        """Waits for the process that closed its end of the pipe, and returns how it ended."""
        process, status = self._process, None
        assert process is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                status = await process.wait()
        await self.stop()
        if status is None:
            return "closed its end of the pipe"
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    def _open_log(self) -> IO[bytes]:
        return Path(os.devnull).open("wb") if self._log is None else self._log.open("ab")


def _environment() -> dict[str, str]:
    """Returns this environment with the driver's import path, one thread and fixed hashes, without Ray's
    token."""
    path = os.pathsep.join(filter(None, sys.path))  # "" is the current folder
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_TOKEN")}
    return {**inherited, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
