"""Runs each tracker in a separate thread, so that a hanging tracker does not delay the job.

journal ── start, log, close ──▶ queue ──▶ thread ──▶ tracker

Trackers that show tables get the first samples of a step as one.
"""

import json
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from queue import SimpleQueue
from typing import Any, cast

from rlrun.plugins.protocols import Tracker
from rlrun.plugins.types import Group, Sample

CLOSE_SECONDS = 120.0
"""How long all trackers together may take to send pending metrics when the job has ended."""
logger = logging.getLogger(__name__)
ROWS = 16
"""The most samples of a table: whole groups come first."""
COLUMNS = ("id", "prompt", "response", "reward", "rewards", "reasons", "label", "status", "tokens")
MAX_TEXT_LENGTH = 20_000
"""Characters of a text in a table."""
Cell = str | float | None


class TrackerThread:
    """One tracker and its thread; the methods queue a call and return at once."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        """Starts the thread; `name` identifies the tracker in messages."""
        self._name = name
        self._tracker = tracker
        self._failure_reported = False
        self._calls: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        """Tells the tracker that training starts."""
        self._calls.put((self._tracker.start, run_folder, name, spec))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Gives the tracker the metrics of a step."""
        self._calls.put((self._tracker.log, step, metrics))

    @property
    def takes_tables(self) -> bool:
        """Whether the tracker shows tables."""
        return hasattr(self._tracker, "log_table")

    def log_table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Gives the tracker a table, if it shows tables."""
        if self.takes_tables:
            self._calls.put((cast("Any", self._tracker).log_table, step, name, columns, rows))

    def alert(self, step: int, name: str, sentence: str) -> None:
        """Gives the tracker an alert that has begun, if it can tell people."""
        if hasattr(self._tracker, "alert"):
            self._calls.put((cast("Any", self._tracker).alert, step, name, sentence))

    def close(self) -> None:
        """Tells the tracker that the run has ended."""
        self._calls.put((self._tracker.close,))
        self._calls.put(None)

    def wait(self, seconds: float) -> None:
        """Waits until every call is made; warns if that takes more than `seconds`."""
        self._thread.join(seconds)
        if self._thread.is_alive():
            logger.warning(
                "tracker %r hangs, and rlrun stops waiting for it: it may lack steps that metrics.jsonl has",
                self._name,
            )

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            self._call(*call)

    def _call(self, method: Any, *args: Any) -> None:
        """Calls the plugin and catches all of its errors, of which the first is reported."""
        try:
            method(*args)
        except Exception as error:
            if not self._failure_reported:
                self._failure_reported = True
                reason = f"{type(error).__name__}: {error}"
                logger.warning("tracker %r failed (%s); the job continues", self._name, reason)


def close_trackers(trackers: Sequence[TrackerThread]) -> None:
    """Closes all trackers concurrently, and waits at most `CLOSE_SECONDS` for all of them."""
    for tracker in trackers:
        tracker.close()
    deadline = time.monotonic() + CLOSE_SECONDS
    for tracker in trackers:
        tracker.wait(max(0.0, deadline - time.monotonic()))


def table_rows(groups: Sequence[Group]) -> list[list[Cell]]:
    """Returns the rows of the first samples, with a cell for each of `COLUMNS`."""
    samples = (sample for group in groups for sample in group.samples)
    return [_row(sample) for sample in islice(samples, ROWS)]


def _row(sample: Sample) -> list[Cell]:
    row = sample.prompt.row
    prompt = row.prompt if isinstance(row.prompt, str) else _as_json(row.prompt)
    return [
        sample.id,
        prompt[:MAX_TEXT_LENGTH],
        sample.text[:MAX_TEXT_LENGTH],
        sample.reward if sample.is_scored else None,
        _as_json(sample.rewards),
        sample.failure or _as_json(sample.reward_details),
        "" if row.label is None else str(row.label)[:MAX_TEXT_LENGTH],
        str(sample.status),
        float(len(sample.tokens)),
    ]


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:MAX_TEXT_LENGTH] if value else ""
