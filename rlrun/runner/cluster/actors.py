"""The processes of a job: trainer ranks, native engines, and SGLang servers, which their process owns."""

import os
import time
from typing import Any

from rlrun.runner.cluster.actor import Actor, peak_memory, reports_failure
from rlrun.runner.contracts.carriers import TrainerSetup
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.process.server_process import ask_health
from rlrun.runner.engines.sglang.server import SglangServer
from rlrun.runner.engines.sglang.setup import SglangSetup

_HEALTH_SECONDS = 60.0


class EngineActor(Actor):
    """One native engine, which serves HTTP from a thread of this process."""

    imports = "rlrun.runner.engines.native.http.server"
    _url: str | None = None

    @reports_failure
    def start(self, setup: EngineSetup) -> str:
        """Loads the model, starts to listen and returns the URL."""
        from rlrun.runner.engines.native.http.server import NativeServer  # the driver must not import torch

        self._server = NativeServer(setup)
        self._url = self._server.start()
        return self._url

    @reports_failure
    def ping(self) -> tuple[int, float]:
        """Returns the process's id and memory while the engine says that it works; its failure otherwise."""
        if self._url is not None:
            ask_health(self._url, _HEALTH_SECONDS)
        return os.getpid(), peak_memory()

    @reports_failure
    def close(self) -> None:
        """Stops the server."""
        self._server.stop()


class SglangActor(Actor):
    """Owns one SGLang server, a separate process that dies with this one."""

    _server: SglangServer | None = None

    @reports_failure
    def start(self, setup: SglangSetup) -> str:
        """Starts the server, waits until it answers and returns the URL."""
        self._server = SglangServer(setup)
        return self._server.start()

    @reports_failure
    def ping(self) -> tuple[int, float]:
        """Returns the process's id and memory while the server answers; what it died of otherwise."""
        if self._server is None:
            return os.getpid(), 0.0
        self._server.check()
        return os.getpid(), self._server.memory()

    @reports_failure
    def close(self) -> None:
        """Ends the server and every process that it started."""
        if self._server is not None:
            self._server.stop()


class TrainerActor(Actor):
    """Holds one trainer rank, whose methods the driver calls through `run` (see rank_calls.py)."""

    called_aside = frozenset({"ping", "abort_weights"})
    imports = "rlrun.runner.trainer.roles.rank"

    @reports_failure
    def start(self, setup: TrainerSetup) -> None:
        """Imports torch, joins the other ranks and loads the models: seconds to minutes."""
        from rlrun.runner.trainer.roles.rank import TrainerRank

        self._rank = TrainerRank(setup)

    @reports_failure
    def run(self, method: str, *args: Any) -> tuple[Any, float]:
        """Returns the answer of a method of TrainerRank, and the seconds that it took."""
        started = time.perf_counter()
        answer = getattr(self._rank, method)(*args)
        return answer, time.perf_counter() - started

    @reports_failure
    def close(self) -> None:
        """Removes shared memory and leaves the process group."""
        self._rank.close()
