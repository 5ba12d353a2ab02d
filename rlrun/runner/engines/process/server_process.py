"""Runs a server as a subprocess in another Python environment, and ends it with every process it started.

setup ──▶ command line ──▶ process ──GET /health until it answers──▶ URL
                              └─▶ log ──▶ the server's own last error, when it dies
"""

import os
import re
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Protocol
from urllib.request import ProxyHandler, Request, build_opener

import psutil

from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.host.network import free_port, take

_POLL_SECONDS = 0.2
_HEALTH_SECONDS = 20.0
_END_SECONDS = 3.0
_TAIL_BYTES = 200_000
"""How much of a log is searched for the error that a server died of."""
_ERROR = re.compile(r"^(?:\[[^\]]*\] )?((?:[\w.]*(?:Error|Exception|Exit|Interrupt)\b|error:|.*: error:).*)")
"""`ValueError: …` at the end of a traceback, `launch_server.py: error: …` of its argument parser."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_DIRECT = build_opener(ProxyHandler({}))
"""Ignores the environment's proxy, which cannot reach the job's own servers."""


class ServerSetup(Protocol):
    """The settings that every kind of server has."""

    @property
    def host(self) -> str:
        """Address to listen on."""

    @property
    def port(self) -> int | None:
        """Port to listen on; None: a free one."""

    @property
    def log(self) -> Path:
        """File that the server's output is appended to."""

    @property
    def secrets(self) -> Path:
        """File for keys, which a command line would show to other users; removed when the server is up."""

    @property
    def api_key(self) -> str:
        """The key that the server asks its clients for."""

    @property
    def start_timeout(self) -> float:
        """Seconds that the server may take to answer."""


class ServerProcess(ABC):
    """One server. Call `start`, `check` from time to time, and `stop`, also while a check is running."""

    what: ClassVar[str]
    """Kind of server, for messages: `SGLang server`."""

    def __init__(self, setup: ServerSetup) -> None:
        self._setup = setup
        self._process: subprocess.Popen[bytes] | None = None
        self._members: set[psutil.Process] = set()
        """The server and every process seen below it; they may outlive it and lose their parent."""
        self._log_start = 0
        self.url = ""

    def start(self) -> str:
        """Starts the server, waits until it answers and returns its URL; raises as `launch` and `wait` do."""
        self.launch()
        return self.wait()

    def launch(self) -> None:
        """Starts the server, which is killed when the thread that calls this ends.

        Raises EngineError if its port is taken, FileNotFoundError if the interpreter does not exist.
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
        """Returns the URL when the server answers.

        Raises EngineError with the server's own last error as soon as it dies, TimeoutError past the
        deadline. The server is stopped then.
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
        """Raises EngineError when the server is gone or does not answer."""
        assert self._process is not None, "`launch` comes first"
        self._raise_if_dead()
        if not self._answers(_HEALTH_SECONDS):
            with suppress(subprocess.TimeoutExpired):  # a dying server refuses connections before it is gone
                self._process.wait(_END_SECONDS)
            self._raise_if_dead()
            raise EngineError(
                f"the {self.what} at {self.url} did not answer /health in {_HEALTH_SECONDS:g} s"
            )
        self._members = self._members | _tree(self._process.pid)

    def memory(self) -> float:
        """Returns the bytes of host memory that the server and the processes it started use now."""
        return float(sum(_resident(member) for member in self._members))

    def stop(self) -> None:
        """Ends the server and every process that it started."""
        if self._process is None:
            return
        self._members = self._members | _tree(self._process.pid)
        for member in self._members:
            _signal(member, signal.SIGTERM)
        _, remaining = psutil.wait_procs(list(self._members), timeout=_END_SECONDS)
        for member in remaining:
            _signal(member, signal.SIGKILL)
        self._process.wait(_END_SECONDS)

    @abstractmethod
    def _command(self, port: int) -> list[str]:
        """Returns the server's command line."""

    @abstractmethod
    def _environment(self) -> dict[str, str]:
        """Returns the server's environment variables."""

    @abstractmethod
    def _secret(self) -> str:
        """Returns the content of the file of secrets."""

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + self._setup.start_timeout
        while not self._answers(_POLL_SECONDS * 5):
            self._raise_if_dead()
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"the {self.what} did not answer within {self._setup.start_timeout:g} s "
                    f"(engine.start_timeout); its last line: {_last_line(self._output())}"
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
            raise EngineError(f"the {self.what} ended ({_ending(status)}): {last_error(self._output())}")

    def _output(self) -> str:
        return _written(self._setup.log, self._log_start)


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


def _written(log: Path, start: int) -> str:
    """Returns the text of a log from byte `start` on, without colours; only the end of a very long one."""
    with log.open("rb") as file:
        file.seek(max(start, log.stat().st_size - _TAIL_BYTES))
        return _COLOURS.sub("", file.read().decode(errors="replace"))


def last_error(output: str) -> str:
    """Returns the last line of a log that states an error; the last line if none does."""
    lines = [line.strip() for line in output.splitlines()]
    errors = [match[1] for line in lines if (match := _ERROR.match(line))]
    return errors[-1] if errors else _last_line(output)


def _last_line(output: str) -> str:
    """Returns the last line that is not empty."""
    return next((line.strip() for line in reversed(output.splitlines()) if line.strip()), "nothing")


def _ending(status: int) -> str:
    """Returns how a process ended, from its exit status."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit code {status}"


def ask_health(url: str, seconds: float, key: str | None = None) -> None:
    """Returns when `/health` answers yes. Raises OSError if it answers no, or does not answer in time."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with _DIRECT.open(Request(f"{url}/health", headers=headers), timeout=seconds):
        pass


def usable_port(host: str, port: int | None) -> int:
    """Returns the given port, or a free one if it is None. Raises EngineError if the port is taken:
    the server itself would fail only after a minute of loading.
    """
    if port is None:
        return free_port(host)
    try:
        return take(host, port)
    except OSError as error:
        raise EngineError(
            f"port {port} of {host} is taken ({error.strerror}); choose another engine.port, or leave it out"
        ) from error
