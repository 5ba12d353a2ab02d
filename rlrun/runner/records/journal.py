"""Distributes a step's metrics. A separate thread writes the files, so that no step waits for a disk.

loop ── step ──▶ console (at once)
            ├──▶ writer thread: metrics.jsonl, timeline.jsonl, rollouts/, state.json
            └──▶ the thread of each tracker
"""

import json
import logging
import math
import threading
import time
from asyncio import to_thread
from collections.abc import Awaitable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any, TypeVar

from rlrun.plugins.protocols import Tracker
from rlrun.plugins.types import Group
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.contracts.step_clock import Span
from rlrun.runner.host.process_identity import Owner
from rlrun.runner.records.alerts import AlertWatch
from rlrun.runner.records.console import Console
from rlrun.runner.records.metrics_file import read_metrics
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.run_time import RunTime
from rlrun.runner.records.sample_files import Pieces, SampleFiles
from rlrun.runner.records.time_left import TimeLeft
from rlrun.runner.records.tracking import COLUMNS, TrackerThread, close_trackers, table_rows
from rlrun.specs.problems.codes import Code

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 30.0
"""Interval at which state.json is written even if nothing has changed."""


class Journal:
    """Writes a launch's progress to the console, the run folder and the trackers."""

    def __init__(
        self,
        folder: RunFolder,
        console: Console,
        trackers: Sequence[tuple[str, Tracker]] = (),
        *,
        keeps_rollouts: bool = False,
    ) -> None:
        """Marks the run as running; `keeps_rollouts` saves everything that training needs of every sample."""
        self._folder = folder
        self._samples = SampleFiles(folder, keeps_every=keeps_rollouts)
        self._console = console
        self._trackers = [TrackerThread(name, tracker) for name, tracker in trackers]
        self._alerts = AlertWatch()
        self._time_left = TimeLeft()
        self._run_time = _launched(folder.read_state())
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
            "seconds_left": None,
            "error": None,
            "error_code": None,
            "run_time": self._run_time.model_dump(),
        }
        self._write_state()
        self._end_event = threading.Event()
        self._heartbeat = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heartbeat.start()

    def begin(self, step: int, steps: int, spec: Mapping[str, Any]) -> None:
        """Records that training starts with `step` of `steps` done; `spec` is resolved and has no secrets."""
        earlier = read_metrics(self._folder.metrics)
        self._run_time.begin(time.time(), earlier)
        self._state |= {"step": step, "steps": steps, "run_time": self._run_time.model_dump()}
        self._time_left.begin(step, steps)
        self._alerts.begin(earlier, spec.get("rollout", {}).get("batch_size"))
        self._console.start(step, steps)
        self._submit(self._write_state)
        for tracker in self._trackers:
            tracker.start(str(self._folder.path), self._folder.name, spec)

    def go_back(self, step: int) -> None:
        """Records that the job continues from an earlier `step` and repeats the steps after it."""
        earlier = read_metrics(self._folder.metrics)
        self._run_time.go_back(time.time(), earlier)
        self._state |= {"step": step, "run_time": self._run_time.model_dump()}
        self._time_left.go_back(step)
        self._alerts.begin(earlier)
        self._console.go_back(step)
        self._submit(self._write_state)

    def note(self, facts: Mapping[str, Any]) -> None:
        """Adds fields to state.json."""
        self._state |= facts
        self._submit(self._write_state)

    def doing(self, activity: str, done: int = 0, total: int = 0) -> None:
        """Shows the current work, and how much of it is done if `total` is given."""
        self._console.doing(activity, done, total)

    async def timed(self, phase: str, work: Awaitable[Result]) -> Result:
        """Awaits a phase, which the console shows while it lasts; a long one is printed with its time."""
        return await self._console.timed(phase, work)

    def save_tokens(self, pieces: Pieces) -> None:
        """Saves the texts of tokens too from now on; `pieces` returns the bytes of each token."""
        self._samples.save_tokens(pieces)

    def step(self, step: int, metrics: dict[str, float]) -> None:
        """Records the metrics of a step.

        Raises JobError if an earlier step could not be written.
        """
        seconds_left = self._time_left.add(step, metrics.get("perf/step_time"))
        self._run_time.step(time.time(), metrics)
        if "perf/step_time" in metrics:
            metrics = metrics | {"perf/goodput": self._run_time.goodput}
        self._console.step(step, metrics, seconds_left)
        new_alerts, active = self._alerts.add(metrics)
        for alert in new_alerts:
            self._console.say(alert.line, style="yellow")
        metrics = metrics | active
        self._raise_failed(self._take_finished())
        facts = {"seconds_left": seconds_left, "run_time": self._run_time.model_dump()}
        self._submit(self._write_step, step, dict(metrics), facts)
        for tracker in self._trackers:
            tracker.log(step, dict(metrics))
            for alert in new_alerts:
                tracker.alert(step, alert.name, alert.sentence)

    def samples(self, step: int, groups: Sequence[Group], removed: Sequence[Group] = ()) -> None:
        """Records the groups that a step trained on, and samples that it did not train on."""
        self._submit(self._samples.write_step, step, list(groups), list(removed))
        self._log_table(step, "samples", groups)

    def evaluation(self, step: int, groups: Mapping[str, Sequence[Group]]) -> None:
        """Records the samples of an evaluation, by dataset."""
        self._submit(self._samples.write_evaluation, step, dict(groups))
        for name, answered in groups.items():
            self._log_table(step, f"eval/{name}/samples", answered)

    def evaluated(self, dataset: str, groups: Sequence[Group]) -> None:
        """Records groups of an evaluation that is not finished, for a launch that resumes it."""
        self._submit(self._samples.append_evaluated, dataset, list(groups))

    def _log_table(self, step: int, name: str, groups: Sequence[Group]) -> None:
        trackers = [tracker for tracker in self._trackers if tracker.takes_tables]
        rows = table_rows(groups) if trackers else []
        for tracker in trackers if rows else ():
            tracker.log_table(step, name, COLUMNS, rows)

    def timeline(self, step: int, started: float, spans: Sequence[Span]) -> None:
        """Records when each part of the job worked in a step that began at `started`."""
        began = time.time() - (time.perf_counter() - started)
        rows = [
            [span.lane, span.name, round(span.start - started, 4), round(span.end - started, 4)]
            for span in spans
        ]
        self._submit(self._write_timeline, {"step": step, "time": round(began, 3), "spans": rows})

    async def flush(self) -> None:
        """Waits until everything is written. Raises JobError if that fails."""
        writes, self._writes = self._writes, []
        await to_thread(_wait, writes)
        self._raise_failed(writes)

    def close(self, status: str, error: str | None = None, code: Code | None = None) -> None:
        """Writes the last state and closes the trackers; an error of the disk is only logged."""
        self._end_event.set()
        self._heartbeat.join()
        self._run_time.end(time.time(), is_done=status == "done")
        ended = {"status": status, "error": error, "error_code": code}
        self._state |= {**ended, "run_time": self._run_time.model_dump()}
        self._submit(self._write_state)
        self._writer.shutdown(wait=True)
        for write in self._writes:
            if problem := write.exception():
                logger.error("%s could not be written: %s", self._folder.shown, problem)
        close_trackers(self._trackers)

    def withdraw(self, before: Mapping[str, Any]) -> None:
        """Writes the state that the run had before this launch, which was refused."""
        self._end_event.set()
        self._heartbeat.join()
        self._submit(self._folder.write_state, dict(before))
        self._writer.shutdown(wait=True)
        close_trackers(self._trackers)

    def _write_step(self, step: int, metrics: dict[str, float], facts: Mapping[str, Any]) -> None:
        line = {"step": step} | finite_metrics(metrics)
        with self._folder.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self._state |= {"step": step, **facts}
        self._state["metrics"] = self._state["metrics"] | finite_metrics(metrics)
        self._write_state()

    def _write_timeline(self, line: Mapping[str, Any]) -> None:
        with self._folder.timeline.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def _write_state(self) -> None:
        self._folder.write_state({**self._state, "updated": _now()})

    def _beat(self) -> None:
        """Updates state.json regularly, so that a run in a step of hours is seen to be alive."""
        while not self._end_event.wait(HEARTBEAT_SECONDS):
            self._writer.submit(self._write_state)

    def _submit(self, function: Any, *args: Any) -> None:
        self._writes.append(self._writer.submit(function, *args))

    def _take_finished(self) -> list[Future[None]]:
        finished = [write for write in self._writes if write.done()]
        self._writes = [write for write in self._writes if write not in finished]
        return finished

    def _raise_failed(self, writes: Sequence[Future[None]]) -> None:
        for write in writes:
            if isinstance(problem := write.exception(), OSError):
                raise JobError(
                    f"{self._folder.shown} cannot be written: {problem.strerror or problem}. "
                    "Make room (or repair the disk) and continue with --resume",
                    code=Code.DISK,
                ) from problem
            if problem is not None:
                raise problem


def finite_metrics(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """Returns the metrics with None for nan and infinity, which JSON does not have."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _launched(earlier: Mapping[str, Any]) -> RunTime:
    """Returns the time of a run that is launched now; its state was `earlier`, empty for a first launch."""
    now = time.time()
    if not earlier.get("run_time"):
        return RunTime(began=now)
    run_time = RunTime.model_validate(earlier["run_time"])
    ended = datetime.fromisoformat(earlier["updated"]).timestamp()
    run_time.launch_again(ended, now, was_done=earlier["status"] == "done")
    return run_time


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _wait(writes: Sequence[Future[None]]) -> None:
    for write in writes:
        write.exception()
