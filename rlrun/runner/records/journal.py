"""Where a step's metrics go. Files are written by a thread of their own, so that no step waits for a disk.

loop ── step ──▶ console (at once)
            ├──▶ thread: metrics.jsonl, rollouts/, state.json
            └──▶ each tracker's own thread
"""

import json
import logging
import math
import threading
from asyncio import to_thread
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from rlrun.plugins.protocols import Tracker
from rlrun.plugins.types import Group, Sample
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.host.process_identity import Owner
from rlrun.runner.records.console import Console
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import rollout_file, write_samples
from rlrun.runner.records.tracking import Tracking, close_all

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

BEAT_SECONDS = 30.0
_KEPT_SAMPLES = 32
"""Samples a step whose text is kept."""


class Journal:
    """Console, run folder and trackers of one launch."""

    def __init__(
        self,
        folder: RunFolder,
        console: Console,
        trackers: Sequence[tuple[str, Tracker]] = (),
        *,
        whole: bool = False,
    ) -> None:
        """Writes at once that the run is alive. `whole`: keep every sample, with all that training takes."""
        self._folder = folder
        self._whole = whole
        self._console = console
        self._trackers = [Tracking(name, tracker) for name, tracker in trackers]
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="journal")
        self._writes: list[Future[None]] = []
        now = _now()
        self._state: dict[str, Any] = Owner.current().model_dump() | {
            "status": "running",
            "started": now,
            "updated": now,
            "step": 0,
            "steps": None,
            "metrics": {},
            "error": None,
        }
        self._write_state()
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._beating.start()

    def begin(self, step: int, steps: int, spec: Mapping[str, Any]) -> None:
        """Training starts, `step` of `steps` done; `spec` is the resolved one, without secrets."""
        self._state |= {"step": step, "steps": steps}
        self._console.start(step, steps)
        self._submit(self._write_state)
        for tracker in self._trackers:
            tracker.start(str(self._folder.path), self._folder.name, spec)

    def go_back(self, step: int) -> None:
        """The job goes on from an earlier `step`; those after it are taken again."""
        self._state |= {"step": step}
        self._console.go_back(step)
        self._submit(self._write_state)

    def note(self, facts: Mapping[str, Any]) -> None:
        """Add to what state.json says."""
        self._state |= facts
        self._submit(self._write_state)

    def doing(self, what: str, done: int = 0, total: int = 0) -> None:
        """Show what the job is busy with, and how much of it is done where `total` is given."""
        self._console.doing(what, done, total)

    async def timed(self, phase: str, work: Awaitable[Result]) -> Result:
        """Await a phase, shown while it lasts; a line says how long it took where it was long."""
        return await self._console.timed(phase, work)

    def step(self, step: int, metrics: dict[str, float], groups: Sequence[Group]) -> None:
        """Metrics of a step and the groups it trained on. JobError when an earlier step was not written."""
        self._console.step(step, metrics)
        self._raise_failed(self._done())
        self._submit(self._write_step, step, dict(metrics), _chosen(groups, every=self._whole))
        for tracker in self._trackers:
            tracker.log(step, dict(metrics))

    def samples(self, step: int, groups: Sequence[Group]) -> None:
        """The groups of a step whose metrics are not complete yet."""
        self._submit(self._write_samples, step, _chosen(groups, every=self._whole))

    async def flush(self) -> None:
        """Return when all is written. JobError when it could not be."""
        writes, self._writes = self._writes, []
        await to_thread(_wait, writes)
        self._raise_failed(writes)

    def close(self, status: str, error: str | None = None) -> None:
        """Write the last state and let the trackers go; a disk that is full cannot stop this."""
        self._ended.set()
        self._beating.join()
        self._state |= {"status": status, "error": error}
        self._submit(self._write_state)
        self._writer.shutdown(wait=True)
        for write in self._writes:
            if problem := write.exception():
                logger.error("the run folder could not be brought up to date: %s", problem)
        close_all(self._trackers)

    def _write_step(self, step: int, metrics: dict[str, float], samples: list[tuple[Group, Sample]]) -> None:
        line = {"step": step} | finite(metrics)
        with self._folder.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._write_samples(step, samples)
        self._state |= {"step": step, "metrics": self._state["metrics"] | finite(metrics)}
        self._write_state()

    def _write_samples(self, step: int, samples: list[tuple[Group, Sample]]) -> None:
        if samples:
            write_samples(rollout_file(self._folder.rollouts, step), samples, whole=self._whole)

    def _write_state(self) -> None:
        self._folder.write_state({**self._state, "updated": _now()})

    def _beat(self) -> None:
        """Say now and then that the run is alive, also in a step that takes hours."""
        while not self._ended.wait(BEAT_SECONDS):
            self._writer.submit(self._write_state)

    def _submit(self, function: Any, *args: Any) -> None:
        self._writes.append(self._writer.submit(function, *args))

    def _done(self) -> list[Future[None]]:
        done = [write for write in self._writes if write.done()]
        self._writes = [write for write in self._writes if not write.done()]
        return done

    def _raise_failed(self, writes: Sequence[Future[None]]) -> None:
        for write in writes:
            if isinstance(problem := write.exception(), OSError):
                raise JobError(
                    f"{self._folder.shown} cannot be written: {problem.strerror or problem}. "
                    "Make room (or mend the disk) and go on with --resume"
                ) from problem
            if problem is not None:
                raise problem


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The same metrics as JSON can hold them: None for nan and infinity."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _chosen(groups: Sequence[Group], *, every: bool) -> list[tuple[Group, Sample]]:
    """Every sample, or an even spread of whole groups, about as many samples as are kept."""
    if not groups:
        return []
    size = max(1, len(groups[0].samples))
    stride = 1 if every else max(1, math.ceil(len(groups) * size / _KEPT_SAMPLES))
    return [(group, sample) for group in groups[::stride] for sample in group.samples]


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _wait(writes: Sequence[Future[None]]) -> None:
    for write in writes:
        write.exception()
