"""The bodies of engines' processes: one of our own that serves HTTP, and one that owns an SGLang server."""

import os
from typing import Any

from rlrun.runner.cluster.actor import Actor, peak_memory, reports_failure
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.process.health import ask_health
from rlrun.runner.engines.sglang.server import SglangServer
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.engines.sleeping.setup import SleepingSetup

_HEALTH_SECONDS = 60.0


class EngineActor(Actor):
    """One engine of our own, native or sleeping, which serves HTTP from threads of its own."""

    _url: str | None = None

    @reports_failure
    def start(self, setup: EngineSetup | SleepingSetup) -> str:
        """Load the model and listen; the URL."""
        self._server = _own_server(setup)
        self._url = self._server.start()
        return self._url

    @reports_failure
    def ping(self) -> tuple[int, float]:
        """As for every process, while the engine says that it works; its failure otherwise."""
        if self._url is not None:
            ask_health(self._url, _HEALTH_SECONDS)
        return os.getpid(), peak_memory()

    @reports_failure
    def close(self) -> None:
        """Stop listening."""
        self._server.stop()


class SglangActor(Actor):
    """One SGLang server, a process of its own that dies with this one."""

    _server: SglangServer | None = None

    @reports_failure
    def start(self, setup: SglangSetup) -> str:
        """Start the server and wait until it answers; the URL."""
        self._server = SglangServer(setup)
        return self._server.start()

    @reports_failure
    def ping(self) -> tuple[int, float]:
        """As for every process, while the server answers; what it died of otherwise."""
        if self._server is None:
            return os.getpid(), 0.0
        self._server.check()
        return os.getpid(), self._server.memory()

    @reports_failure
    def close(self) -> None:
        """End the server and all that it started."""
        if self._server is not None:
            self._server.stop()


def _own_server(setup: EngineSetup | SleepingSetup) -> Any:
    """With what only this process imports."""
    if isinstance(setup, SleepingSetup):
        from rlrun.runner.engines.sleeping.server import SleepingServer

        return SleepingServer(setup)
    from rlrun.runner.engines.native.http.server import NativeServer

    return NativeServer(setup)
