"""A tracker in a thread of its own: one that fails or hangs holds up neither the job nor another tracker.

journal ── start, log, close ──▶ queue ──▶ thread ──▶ tracker
"""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from queue import SimpleQueue
from typing import Any

from rlrun.plugins.protocols import Tracker

CLOSE_SECONDS = 120.0
"""How long trackers may take to send what is pending, once the job is over."""

logger = logging.getLogger(__name__)


class Tracking:
    """One tracker; its methods return at once."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        """`name` is what messages call it."""
        self._name = name
        self._tracker = tracker
        self._told = False
        self._calls: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        """Training starts."""
        self._calls.put((self._tracker.start, run_folder, name, spec))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of a step."""
        self._calls.put((self._tracker.log, step, metrics))

    def close(self) -> None:
        """Nothing more will come."""
        self._calls.put((self._tracker.close,))
        self._calls.put(None)

    def wait(self, seconds: float) -> None:
        """Return when it has heard everything, or after so many seconds, and say so."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.warning(
                "tracker %r hangs and is not waited for: it may lack steps that metrics.jsonl has", self._name
            )

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._tell(*call)

    def _tell(self, method: Any, *args: Any) -> None:
        """The boundary to tracker plugins: whatever they raise is told once and forgotten."""
        try:
            method(*args)
        except Exception as error:
            if not self._told:
                self._told = True
                what = f"{type(error).__name__}: {error}"
                logger.warning("tracker %r failed (%s); the job goes on", self._name, what)


def close_all(trackers: Sequence[Tracking]) -> None:
    """Have all send what is pending, side by side; `CLOSE_SECONDS` are for all together."""
    for one in trackers:
        one.close()
    deadline = time.monotonic() + CLOSE_SECONDS
    for one in trackers:
        one.wait(max(0.0, deadline - time.monotonic()))
