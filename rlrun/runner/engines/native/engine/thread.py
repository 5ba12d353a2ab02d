"""The engine's thread: steps the scheduler while it has work, and runs other threads' calls between steps.

any thread: post(action), call(function) -> inbox -> engine thread -> Scheduler.step -> sample.on_done
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
    """Owns the scheduler while it runs. Any thread may call the public methods."""

    def __init__(self, scheduler: Scheduler, ended: Callable[[], None], threads: int | None = None) -> None:
        """`ended` is called in the thread when it stops, unless a step failed. `threads`: see
        `EngineSetup`.
        """
        self.failure: str | None = None
        """Why the engine stopped working; None while it works."""
        self.paused = False
        """No steps are taken. Only functions that run in the thread may set it."""
        self._scheduler = scheduler
        self._ended = ended
        self._threads = threads
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rlrun-engine", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, wait: float) -> None:
        """Aborts all samples and ends the thread. Raises TimeoutError if a step takes longer than `wait`
        seconds.
        """
        self._post(lambda: None, stopping=True)
        self._thread.join(wait)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine's thread did not end within {wait:g} s: a step is still running")

    def post(self, action: Callable[[], None]) -> None:
        """Runs `action` between two steps; it must not raise."""
        self._post(action)

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Runs `function` between two steps; the future holds what it returns or raises.

        Cancelling the future before then drops the call.
        """
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
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
            torch.set_num_threads(self._threads)  # OpenMP keeps this setting per thread
        while self._serve_inbox():
            if self.paused or not self._scheduler.busy:
                continue
            try:
                self._scheduler.step()
            except Exception as error:
                _log.exception("the engine failed")
                self._fail(f"{type(error).__name__}: {error}")
                return
        self._scheduler.abort(lambda sample: True, "the engine stops")
        self._ended()

    def _serve_inbox(self) -> bool:
        """Runs the actions in the inbox; waits for one if there is no work. Returns False when it is time to
        stop.
        """
        with self._wake:
            while not (self._inbox or self._stopping or (self._scheduler.busy and not self.paused)):
                self._wake.wait()
            actions = list(self._inbox)
            self._inbox.clear()
        for action in actions:
            action()
        return not self._stopping

    def _fail(self, reason: str) -> None:
        """Ends all samples with the failure, and every later sample too, until the thread is stopped."""
        self.failure = reason
        self.paused = True
        while True:
            self._scheduler.fail(reason)
            if not self._serve_inbox():
                return
