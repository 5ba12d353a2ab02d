"""A server as a subprocess, in a Python environment of its own: started, watched, and ended with all that it
started.

setup -> command -> process ──▶ GET /health until it answers -> URL
                       └─▶ log ──▶ its own last error, when it dies
"""

import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Protocol

import psutil

from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.engines.process.health import ask_health
from rlrun.runner.engines.process.last_words import ending, last_error, last_line, written
from rlrun.runner.engines.process.ports import usable_port

_POLL_SECONDS = 0.2
_HEALTH_SECONDS = 20.0
_END_SECONDS = 3.0


class ServerSetup(Protocol):
    """What every kind of server has."""

    @property
    def host(self) -> str:
        """Address to listen on."""

    @property
    def port(self) -> int | None:
        """None: a free one."""

    @property
    def log(self) -> Path:
        """Where its output goes."""

    @property
    def secrets(self) -> Path:
        """A file for what no command line may show; it is there while the server starts."""

    @property
    def api_key(self) -> str:
        """Asked of its clients."""

    @property
    def start_timeout(self) -> float:
        """Seconds it may take to answer."""


class ServerProcess(ABC):
    """One server. `start`, then `check` now and then, and `stop`, also while a check is under way."""

    what: ClassVar[str]
    """As messages call it: `SGLang server`."""

    def __init__(self, setup: ServerSetup) -> None:
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        self._members: set[psutil.Process] = set()
        self._log_start = 0
        self.url = ""

    def start(self) -> str:
        """Start it and wait until it answers; its URL. Raises as `launch` and `wait` do."""
        self.launch()
        return self.wait()

    def launch(self) -> None:
        """Start it; it is killed when the thread that calls this ends. EngineError where its port is taken;
        FileNotFoundError where there is no such interpreter.
        """
        setup = self._setup
        port = usable_port(setup.host, setup.port)
        self.url = f"http://{setup.host}:{port}"
        _write_secret(setup.secrets, self._secret())
        setup.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = setup.log.stat().st_size if setup.log.exists() else 0
        with setup.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(port),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait(self) -> str:
        """Return its URL when it answers. EngineError, with the server's own last error, as soon as it dies;
        TimeoutError past the deadline. It is ended then.
        """
        try:
            self._wait_until_up()
        except BaseException:
            self.stop()
            raise
        finally:
            self._setup.secrets.unlink(missing_ok=True)
        return self.url

    def check(self) -> None:
        """EngineError when the server is gone or does not answer."""
        assert self._process is not None, "started first"
        self._raise_if_dead()
        if not self._answers(_HEALTH_SECONDS):
            with suppress(subprocess.TimeoutExpired):  # who dies refuses connections before it is gone
                self._process.wait(_END_SECONDS)
            self._raise_if_dead()
            raise EngineError(
                f"the {self.what} at {self.url} did not answer /health in {_HEALTH_SECONDS:g} s"
            )
        self._members = self._members | _tree(self._process.pid)

    def memory(self) -> float:
        """Bytes that the server and all that it started hold in host memory now."""
        return float(sum(_resident(member) for member in self._members))

    def stop(self) -> None:
        """End it and everything that it started."""
        if self._process is None:
            return
        self._members = self._members | _tree(self._process.pid)
        for member in self._members:
            _signal(member, signal.SIGTERM)
        _, left = psutil.wait_procs(list(self._members), timeout=_END_SECONDS)
        for member in left:
            _signal(member, signal.SIGKILL)
        self._process.wait(_END_SECONDS)

    @abstractmethod
    def _command(self, port: int) -> list[str]:
        """Its command line."""

    @abstractmethod
    def _environment(self) -> dict[str, str]:
        """Its variables."""

    @abstractmethod
    def _secret(self) -> str:
        """What its file of secrets holds."""

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + self._setup.start_timeout
        while not self._answers(_POLL_SECONDS * 5):
            self._raise_if_dead()
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the {self.what} did not answer within {self._setup.start_timeout:g} s "
                    f"(engine.start_timeout); the last that it wrote: {last_line(self._output())}"
                )
            time.sleep(_POLL_SECONDS)

    def _answers(self, seconds: float) -> bool:
        try:
            ask_health(self.url, seconds, self._setup.api_key)
        except OSError:
            return False
        return True

    def _raise_if_dead(self) -> None:
        assert self._process is not None
        status = self._process.poll()
        if status is not None:
            raise EngineError(f"the {self.what} ended ({ending(status)}): {last_error(self._output())}")

    def _output(self) -> str:
        return written(self._setup.log, self._log_start)


def _write_secret(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


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
