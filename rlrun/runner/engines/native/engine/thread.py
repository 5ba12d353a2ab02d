"""The engine's thread: does what other threads ask for between two steps, and steps while there is work.

any thread: post(action), call(function) -> inbox -> engine thread -> Scheduler.step -> job.on_done
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

from rlrun.runner.engines.native.engine.scheduler import Scheduler

T = TypeVar("T")
_log = logging.getLogger(__name__)


class EngineThread:
    """Owns the scheduler while it runs; any thread may call its public methods."""

    def __init__(self, scheduler: Scheduler, ended: Callable[[], None], threads: int | None = None) -> None:
        """`ended` is called there at the end, unless a step failed; `threads`: that torch computes with."""
        self.failure: str | None = None
        """Why the engine stopped working; None while it works."""
        self.paused = False
        """Take no steps; set in the thread itself, by what is called there."""
        self._scheduler = scheduler
        self._ended = ended
        self._threads = threads
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rlrun-engine", daemon=True)

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self, wait: float) -> None:
        """Abort everything and end. TimeoutError when a step takes longer than `wait` seconds."""
        self._post(lambda: None, stopping=True)
        self._thread.join(wait)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine's thread did not end within {wait:g} s: a step is still running")

    def post(self, action: Callable[[], None]) -> None:
        """Do this between two steps; it must not raise."""
        self._post(action)

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Run `function` between two steps; what it returns or raises."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._post(run)
        return future

    def _post(self, action: Callable[[], None], stopping: bool = False) -> None:
        with self._wake:
            self._inbox.append(action)
            self._stopping = self._stopping or stopping
            self._wake.notify()

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)  # OpenMP's setting belongs to the thread that makes it
        while self._serve_inbox():
            if self.paused or not self._scheduler.busy:
                continue
            try:
                self._scheduler.step()
            except Exception as error:
                _log.exception("the engine failed")
                self._fail(f"{type(error).__name__}: {error}")
                return
        self._scheduler.abort(lambda job: True, "the engine stops")
        self._ended()

    def _serve_inbox(self) -> bool:
        """Do what was asked, waiting for it when there is nothing else to do. False: time to stop."""
        with self._wake:
            while not (self._inbox or self._stopping or (self._scheduler.busy and not self.paused)):
                self._wake.wait()
            actions = list(self._inbox)
            self._inbox.clear()
        for action in actions:
            action()
        return not self._stopping

    def _fail(self, reason: str) -> None:
        """Answer everything with the failure, now and later."""
        self.failure = reason
        self.paused = True
        while True:
            self._scheduler.fail(reason)
            if not self._serve_inbox():
                return
