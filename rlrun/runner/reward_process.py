"""One reward process as the driver sees it: started, given batches, killed when a sample takes too long."""

import asyncio
import json
import os
import pickle
import signal
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rlrun.runner.errors import JobError
from rlrun.runner.scoring_worker import RewardSetup, Setup, Task
from rlrun.specs.scoring import ScoringSpec

START_TIMEOUT = 60.0
"""Seconds in which a process must have imported and built its rewards."""
GRACE = 0.05
"""Seconds for an answer that has arrived but waits unread because the event loop was busy."""
LOG_LINES = 20
LOG_BYTES = 10_000


class ProcessDied(Exception):
    """The process ended in the middle of a sample; the message says how."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one reward made of one sample of a batch."""

    sample: int
    """Index in the batch."""
    reward: int
    """Index in the spec's rewards."""
    value: float | None
    """None: see `problem`."""
    problem: str = ""
    fatal: bool = False
    """The spec is wrong: every sample would fail in the same way."""


class RewardProcess:
    """A child process that scores samples one after the other; restarted by calling `start` again."""

    def __init__(self, rewards: Sequence[RewardSetup], scoring: ScoringSpec, log: Path | None = None) -> None:
        """`log`: file that what the rewards print is appended to; None: it is thrown away."""
        self._setup = Setup(tuple(rewards), os.getpid(), scoring.memory)
        self._timeout = scoring.timeout
        self._log = log
        self._process: asyncio.subprocess.Process | None = None
        self._is_ready = False

    async def start(self) -> None:
        """Returns when the rewards are built; JobError, naming plugin and cause, when they cannot be."""
        await self.spawn()
        await self._wait_ready()

    async def spawn(self) -> None:
        """Begin to start, so that it is ready when it is needed."""
        self._is_ready = False
        with self._open_log() as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-c", "from rlrun.runner.scoring_worker import main; main()"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=_environment(),
                start_new_session=True,
            )
        self._send(self._setup)

    async def outcomes(self, batch: Sequence[Task]) -> AsyncGenerator[Outcome]:
        """Each outcome as it arrives; ProcessDied when a sample crashed the process or took too long."""
        if self._process is None:
            await self.spawn()
        await self._wait_ready()
        loop = asyncio.get_running_loop()
        expected = sum(len(self._setup.rewards) - task.first for task in batch)
        current, started, rest = 0, loop.time(), b""
        self._send(batch)
        while expected:
            data = await self._read(deadline=started + self._timeout)
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                outcome = _parse(line)
                expected -= 1
                if outcome.sample != current or outcome.reward == len(self._setup.rewards) - 1:
                    current, started = outcome.sample, loop.time()
                yield outcome

    async def stop(self) -> None:
        """Kill the process and all that it started."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._process = None

    def log_end(self) -> str:
        """The last lines the rewards printed, and where the whole log is."""
        if self._log is None or not self._log.exists():
            return ""
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
        return "\n".join([*lines, f"(whole log: {self._log})"])

    @property
    def _stdout(self) -> asyncio.StreamReader:
        assert self._process is not None and self._process.stdout is not None, "start() comes first"
        return self._process.stdout

    async def _wait_ready(self) -> None:
        if self._is_ready:
            return
        try:
            async with asyncio.timeout(START_TIMEOUT):
                line = await self._stdout.readline()
        except TimeoutError:
            await self.stop()
            raise JobError(
                f"the reward process did not build its rewards within {START_TIMEOUT:g} s", self.log_end()
            ) from None
        if not line:
            raise JobError(f"the reward process {await self._ending()} while it started", self.log_end())
        if problem := json.loads(line).get("problem"):
            await self.stop()
            raise JobError(problem)
        self._is_ready = True

    def _send(self, message: Any) -> None:
        """Hand a message over without waiting; whether it arrived shows when the answer is read."""
        assert self._process is not None and self._process.stdin is not None, "start() comes first"
        self._process.stdin.write(pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL))

    async def _read(self, deadline: float) -> bytes:
        """What has arrived by `deadline`, on the event loop's clock, with a moment's grace."""
        for limit in (deadline, asyncio.get_running_loop().time() + GRACE):
            with suppress(TimeoutError):
                async with asyncio.timeout_at(limit):
                    data = await self._stdout.read(1 << 16)
                if not data:
                    raise ProcessDied(await self._ending())
                return data
        await self.stop()
        raise ProcessDied(f"took longer than {self._timeout:g} s (scoring.timeout)")

    async def _ending(self) -> str:
        """Reap the process that closed its end of the pipe, and say how it ended."""
        process, status = self._process, 0
        assert process is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                status = await process.wait()
        await self.stop()
        if status < 0:
            return f"was killed by {signal.Signals(-status).name}"
        return f"exited with status {status}"

    def _open_log(self) -> IO[bytes]:
        return Path(os.devnull).open("wb") if self._log is None else self._log.open("ab")


def _environment() -> dict[str, str]:
    """The driver's import path, one thread, and the same hashes every time."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}


def _parse(line: bytes) -> Outcome:
    answer = json.loads(line)
    return Outcome(
        answer["sample"],
        answer["reward"],
        answer.get("value"),
        answer.get("problem", ""),
        answer.get("fatal", False),
    )
