"""One run as the view reads it: its state, metrics, spec, timelines and samples.

Nothing is written to the run's folder.
"""

import base64
import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

from rlrun.models.foreign_files import open_regular
from rlrun.models.json_files import parse_json
from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.records.diagnosis import ENDS, Diagnosis, diagnose, read_spec
from rlrun.runner.records.growing_lines import GrowingLines
from rlrun.runner.records.lock import compared_values, read_lock
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_images import find_in_folder
from rlrun.runner.view.curves import Curves
from rlrun.runner.view.index import connect
from rlrun.runner.view.indexer import Indexer
from rlrun.runner.view.sample_detail import VocabularyReader, detail, read_records_of
from rlrun.runner.view.summary import number, quote
from rlrun.specs.reading.differences import find_differences
from rlrun.specs.sections.job import Spec
from rlrun.specs.step_names import ROLLOUTS, STEP_LIMIT, Kind, list_step_paths, step_name

_MAX_MEMBERS = 64
"""Samples of one group that are shown side by side."""
KINDS = ("step", "dropped", "eval")
_STATE_FIELDS = ("status", "steps", "started", "updated", "seconds_left", "error", "host")
_MAX_QUOTED = 4 << 20
"""Bytes of the largest file from which lists quote the beginnings of prompts and responses."""
_MAX_SPANS = 5000


class ViewedRun:
    """Reads one run's folder. Its methods are called by several threads."""

    def __init__(self, folder: RunFolder, indexer: Indexer | None = None) -> None:
        """`indexer`: one that is up to date; None: a thread indexes the run once samples are asked for."""
        self.folder = folder
        self._indexer = indexer
        self._indexer_lock = threading.Lock()
        self.curves = Curves(folder.metrics)
        self.timelines = _Timelines(folder.timeline)
        self._vocabulary = VocabularyReader(folder.vocabulary)
        self._spec: Spec | None = None
        self._lock = threading.Lock()

    @property
    def indexer(self) -> Indexer:
        """The thread that indexes the run's samples, started when they are first asked for."""
        with self._indexer_lock:
            if self._indexer is None:
                self._indexer = Indexer(self.folder)
                self._indexer.start()
            return self._indexer

    def close(self) -> None:
        """Stops the thread."""
        if self._indexer is not None:
            self._indexer.close()

    def status(self, *, reads_metrics: bool = True) -> dict[str, Any]:
        """Returns name, state, latest metrics and everything that is broken.

        Without `reads_metrics` the metrics are those of the state, so that many runs are listed quickly.
        """
        try:
            state = self.folder.current_state()
            problem = "" if state else f"{self.folder.state.name} is missing"
        except RunFolderError as error:
            state, problem = {}, str(error)
        with self._lock:
            if reads_metrics:
                self.curves.refresh()
                self.timelines.refresh()
            problems = [*([problem] if problem else []), *self.curves.problems]
            diagnosis = self._diagnosis() if reads_metrics else Diagnosis()
            return {
                "name": self.folder.name,
                "folder": str(self.folder.path),
                **{name: state.get(name) for name in _STATE_FIELDS},
                "step": max(state.get("step") or 0, self.curves.last_step, 0),
                "metrics": dict(self.curves.latest) or state.get("metrics") or {},
                "lines": self.curves.num_lines,
                "names": self.curves.names,
                "same": self.curves.same,
                "timelines": self.timelines.steps[-1:],
                "problems": problems,
                "bottleneck": diagnosis.bottleneck and diagnosis.bottleneck.sentence,
                "alerts": [alert.line for alert in diagnosis.alerts],
            }

    def _diagnosis(self) -> Diagnosis:
        if self._spec is None:
            self._spec = read_spec(self.folder)
        return Diagnosis() if self._spec is None else diagnose(self.curves.ends(ENDS), self._spec)

    def spec(self) -> dict[str, Any]:
        """Returns what of the lock is compared between runs, and `given`; empty if it cannot be read."""
        try:
            lock = read_lock(self.folder.lock)
        except (OSError, ValueError):
            return {}
        given = {"given": lock["given"]} if "given" in lock else {}
        return compared_values(lock) | given

    def spans(self, step: int) -> dict[str, Any]:
        """Returns the timeline of a step, and the steps that have one."""
        with self._lock:
            self.timelines.refresh()
            spans = self.timelines.spans(step)
            if spans is not None:
                return {"step": step, "spans": spans, "steps": self.timelines.steps, "from": "timeline"}
            names = [name for name in self.curves.names if name.startswith("perf/")]
            at_step = {name: self.curves.curve(name, step, step)[1] for name in names}
        metrics = {name: values[0] for name, values in at_step.items() if values}
        return {"step": step, "spans": spans_of_metrics(metrics), "steps": [], "from": "metrics"}

    def sample(self, kind: Kind, step: int, line: int, *, whole: bool) -> dict[str, Any]:
        """Returns one sample in full."""
        record = read_records_of(self._path(kind, step), {line})[line]
        return {"kind": kind, "step": step, "line": line} | detail(record, self.vocabulary(), whole=whole)

    def group(self, kind: Kind, step: int, row: str, dataset: str) -> list[dict[str, Any]]:
        """Returns the samples of one prompt in a step; `row` and `dataset` as for `history`."""
        with closing(connect(self.indexer.path)) as index:
            query = (
                "SELECT line FROM samples WHERE kind = ? AND step = ? AND row = ? AND dataset = ? "
                "ORDER BY line LIMIT ?"
            )
            lines = {line for (line,) in index.execute(query, (kind, step, row, dataset, _MAX_MEMBERS))}
        records = read_records_of(self._path(kind, step), lines) if lines else {}
        vocabulary = self.vocabulary()
        return [
            {"kind": kind, "step": step, "line": line} | detail(record, vocabulary)
            for line, record in sorted(records.items())
        ]

    def add_quotes(self, rows: Sequence[dict[str, Any]]) -> None:
        """Adds the beginnings of the prompt and the response to rows of a list, where their file is small."""
        places: dict[tuple[Kind, int], dict[int, dict[str, Any]]] = {}
        for row in rows:
            places.setdefault((row["kind"], row["step"]), {})[row["line"]] = row
        for (kind, step), by_line in places.items():
            path = self._path(kind, step)
            try:
                small = path.stat().st_size <= _MAX_QUOTED
                records = read_records_of(path, set(by_line)) if small else {}
            except (OSError, ValueError):
                continue  # a resume has moved it, or it is damaged
            for line, record in records.items():
                by_line[line] |= quote(record)

    def history(self, row: str, dataset: str) -> dict[str, Any]:
        """Returns the samples of one prompt over all steps or evaluations, oldest first, and how much of the
        run is indexed.

        Datasets number their rows alike, so that a row names a prompt only within its dataset, which is ""
        for the rows of training.
        """
        progress = asdict(self.indexer.progress)
        with closing(connect(self.indexer.path)) as index:
            query = (
                "SELECT kind, step, line, id, reward, tokens, status FROM samples WHERE row = ? "
                "AND dataset = ? "
                "ORDER BY step, kind, line LIMIT 2000"
            )
            samples = [dict(sample) for sample in index.execute(query, (row, dataset))]
        return {"samples": samples, "index": progress}

    def image(self, digest: str) -> str:
        """Returns an image as a data URL. Raises ValueError if the run does not have it."""
        image = find_in_folder(self.folder.rollouts)(digest)
        return f"data:image/png;base64,{base64.b64encode(image.data).decode()}"

    def sample_steps(self, kind: Kind) -> list[int]:
        """Returns the steps that have a file of this kind."""
        return list(list_step_paths(self.folder.rollouts, ROLLOUTS, kind))

    def vocabulary(self) -> Any:
        """Returns the texts of the tokens that the run has saved."""
        with self._lock:
            return self._vocabulary.read()

    def _path(self, kind: Kind, step: int) -> Any:
        return self.folder.rollouts / step_name(step, ROLLOUTS, kind)


def spec_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns how the answers of `ViewedRun.spec` differ."""
    differences = find_differences(compared_values(before), compared_values(after))
    return [asdict(difference) for difference in differences]


def checked_kind(text: str) -> Kind:
    """Returns the kind that a request names. Raises ValueError for any other text."""
    if text not in KINDS:
        raise ValueError(f"there is no kind {text!r}; the kinds are {', '.join(KINDS)}")
    return cast(Kind, text)


class _Timelines:
    """The steps of timeline.jsonl; of several lines of one step, the last counts."""

    def __init__(self, path: Path) -> None:
        self._lines = GrowingLines(path)
        self._place: dict[int, tuple[int, int]] = {}
        """Offset and length of each step's line."""

    def refresh(self) -> None:
        """Finds the lines that are new."""
        if self._lines.was_replaced():
            self._place.clear()
        for offset, line in self._lines.read_new():
            step = _step_at(line)
            if step is not None:
                self._place[step] = (offset, len(line))

    @property
    def steps(self) -> list[int]:
        """The steps that have a timeline."""
        return sorted(self._place)

    def spans(self, step: int) -> list[list[Any]] | None:
        """Returns `[lane, name, start, end]` in seconds from the step's start; None without a timeline."""
        if step not in self._place:
            return None
        offset, length = self._place[step]
        with open_regular(self._lines.path) as file:
            file.seek(offset)
            line = parse_json(file.read(length))
        return valid_spans(line)


def spans_of_metrics(metrics: Mapping[str, float]) -> list[list[Any]]:
    """Returns the driver's parts of a step one after another, for runs that have no timeline."""
    order = ("rollout", "sleep", "log_prob", "reference", "teacher", "values", "train", "weight_sync", "eval")
    spans: list[list[Any]] = []
    start = 0.0
    for name in order:
        seconds = metrics.get(f"perf/{name}_time", 0.0)
        if seconds > 0:
            spans.append(["driver", name, start, start + seconds])
            start += seconds
    return spans


def valid_spans(line: Any) -> list[list[Any]]:
    """Returns the spans of a line that are well-formed."""
    spans = line.get("spans") if isinstance(line, dict) else None
    valid = []
    for span in spans if isinstance(spans, list) else []:
        if not (isinstance(span, list) and len(span) == 4):
            continue
        start, end = number(span[2]), number(span[3])
        if start is not None and end is not None and end >= start and math.isfinite(end - start):
            valid.append([str(span[0])[:80], str(span[1])[:80], start, end])
    return valid[:_MAX_SPANS]


def _step_at(line: bytes) -> int | None:
    try:
        step = parse_json(line)["step"]
    except (ValueError, TypeError, KeyError):
        return None
    return step if type(step) is int and 0 <= step < STEP_LIMIT else None
