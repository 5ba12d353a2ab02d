"""An SGLang server as a subprocess: started, watched, and ended with all that it started.

setup -> command -> process ──▶ GET /health until it answers -> URL
                       └─▶ log ──▶ its own last error, when it dies
"""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from socket import SO_REUSEADDR, SOL_SOCKET, socket
from urllib.error import URLError
from urllib.request import Request, urlopen

import psutil

from rlrun.runner.engines.sglang.command import command, environment, key_file
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.errors import EngineError

_POLL_SECONDS = 0.2
_HEALTH_SECONDS = 20.0
_END_SECONDS = 3.0
_TAIL_BYTES = 200_000
_ERROR = re.compile(r"^(?:\[[^\]]*\] )?((?:[\w.]*(?:Error|Exception|Exit|Interrupt)\b|error:|.*: error:).*)")
"""`ValueError: …` at the end of a traceback, `launch_server.py: error: …` of its argument parser."""


class SglangServer:
    """One server. `start`, then `check` now and then, and `stop`; not for several threads at once."""

    def __init__(self, setup: SglangSetup) -> None:
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        self._members: set[psutil.Process] = set()
        self._log_start = 0
        self.url = ""

    def start(self) -> str:
        """Start it and wait until it answers; its URL.

        EngineError, with the server's own last error, as soon as it dies; TimeoutError past the deadline;
        FileNotFoundError where there is no such interpreter.
        """
        setup = self._setup
        port = _usable_port(setup)
        self.url = f"http://{setup.host}:{port}"
        _write_secret(setup.secrets, key_file(setup))
        setup.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = setup.log.stat().st_size if setup.log.exists() else 0
        with setup.log.open("ab") as log:
            self._process = subprocess.Popen(
                command(setup, port),
                env=environment(setup, os.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait_until_up()
        except BaseException:
            self.stop()
            raise
        finally:
            setup.secrets.unlink(missing_ok=True)
        return self.url

    def check(self) -> None:
        """EngineError when the server is gone or does not answer."""
        assert self._process is not None, "started first"
        self._raise_if_dead()
        if not self._answers(_HEALTH_SECONDS):
            self._raise_if_dead()
            raise EngineError(
                f"the SGLang server at {self.url} did not answer /health in {_HEALTH_SECONDS:g} s"
            )
        self._members |= _tree(self._process.pid)

    def memory(self) -> float:
        """Bytes that the server and all that it started hold in host memory now."""
        return float(sum(_resident(member) for member in self._members))

    def stop(self) -> None:
        """End it and everything that it started."""
        if self._process is None:
            return
        self._members |= _tree(self._process.pid)
        for member in self._members:
            _signal(member, signal.SIGTERM)
        _, left = psutil.wait_procs(list(self._members), timeout=_END_SECONDS)
        for member in left:
            _signal(member, signal.SIGKILL)
        self._process.wait(_END_SECONDS)

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + self._setup.start_timeout
        while not self._answers(_POLL_SECONDS * 5):
            self._raise_if_dead()
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the SGLang server did not answer within {self._setup.start_timeout:g} s "
                    f"(engine.start_timeout); the last that it wrote: {_last_line(self._output())}"
                )
            time.sleep(_POLL_SECONDS)

    def _answers(self, seconds: float) -> bool:
        request = Request(f"{self.url}/health", headers={"Authorization": f"Bearer {self._setup.api_key}"})
        try:
            with urlopen(request, timeout=seconds):
                return True
        except (URLError, OSError):
            return False

    def _raise_if_dead(self) -> None:
        assert self._process is not None
        status = self._process.poll()
        if status is not None:
            raise EngineError(f"the SGLang server ended ({_ending(status)}): {last_error(self._output())}")

    def _output(self) -> str:
        """What this server has written, its end at least."""
        with self._setup.log.open("rb") as log:
            log.seek(max(self._log_start, self._setup.log.stat().st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace")


def last_error(output: str) -> str:
    """The last line of a log that states an error, or its last line."""
    lines = [line.strip() for line in output.splitlines()]
    found = [match[1] for line in lines if (match := _ERROR.match(line))]
    return found[-1] if found else _last_line(output)


def _last_line(output: str) -> str:
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "nothing")


def _ending(status: int) -> str:
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"


def _write_secret(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _usable_port(setup: SglangSetup) -> int:
    """The port that was asked for, or a free one. A server would say only after a minute that it is taken."""
    with socket() as one:
        one.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)  # as servers do: not kept by connections that ended
        try:
            one.bind((setup.host, setup.port or 0))
        except OSError as error:
            raise EngineError(
                f"port {setup.port} of {setup.host} is taken ({error.strerror}); choose another engine.port, "
                "or leave it out"
            ) from error
        return int(one.getsockname()[1])


def _tree(pid: int) -> set[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return {process, *process.children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _signal(process: psutil.Process, number: int) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)
