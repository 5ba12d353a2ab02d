"""The questions that the page asks, and their answers as JSON values. Every question only reads."""

import heapq
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from rlrun.models.json_files import parse_json
from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.view import queries
from rlrun.runner.view.curves import reduce
from rlrun.runner.view.index import connect
from rlrun.runner.view.search import search
from rlrun.runner.view.viewed_run import ViewedRun, checked_kind, spec_differences

Query = Mapping[str, str]
_MAX_SEARCH_LENGTH = 1000
_PAGE = 100
"""Rows of one page."""
_FIRST_SECONDS = 2.0
"""How long the first list waits for the newest samples of its runs."""


class NotFound(ValueError):
    """Raised for a question or a run that does not exist."""


class SweepReader(Protocol):
    """A sweep on disk."""

    path: Path
    """Its folder, which contains the runs of its trials."""

    def table(self) -> dict[str, Any]:
        """Returns `name`, `metric`, `goal` ("max" or "min") and `trials`.

        A trial has `name`, `values`, `status`, `step`, `steps`, `score` and `best`. Raises RunFolderError.
        """
        ...


class Answers:
    """Answers the questions about some runs; a question names its runs by number."""

    def __init__(self, runs: Sequence[ViewedRun], sweeps: Sequence[SweepReader] = ()) -> None:
        """`sweeps`: those that the runs are trials of."""
        self.runs = runs
        self._sweeps = sweeps
        self._handlers: Mapping[str, Callable[[Query], Any]] = {
            "runs": self._runs,
            "sweeps": lambda _: list(sweep_tables(self._sweeps, self.runs)),
            "curves": self._curves,
            "specs": self._specs,
            "timeline": self._timeline,
            "samples": self._samples,
            "sample": self._sample,
            "group": self._group,
            "image": self._image,
            "history": self._history,
            "search": self._search,
        }

    def answer(self, name: str, query: Query) -> Any:
        """Returns the answer to a question.

        Raises NotFound for an unknown one, ValueError or KeyError for bad parameters.
        """
        if name not in self._handlers:
            raise NotFound(f"there is no question {name!r}")
        return self._handlers[name](query)

    def _run(self, query: Query) -> ViewedRun:
        return self._numbered(int(query["run"]))

    def _selected(self, query: Query) -> dict[int, ViewedRun]:
        """Returns the runs that a question about several names, by number."""
        return {number: self._numbered(number) for number in map(int, query["runs"].split(","))}

    def _numbered(self, number: int) -> ViewedRun:
        if not 0 <= number < len(self.runs):
            raise NotFound(f"there is no run {number}")
        return self.runs[number]

    def _runs(self, query: Query) -> Any:
        selected = query.get("selected", "").split(",")
        return [run.status(reads_metrics=str(number) in selected) for number, run in enumerate(self.runs)]

    def _curves(self, query: Query) -> Any:
        run = self._run(query)
        first, last = float(query.get("from") or "-inf"), float(query.get("to") or "inf")
        names = [str(name) for name in parse_json(query["names"])]
        return {name: reduce(run.curves.curve(name, first, last)) for name in names}

    def _specs(self, query: Query) -> Any:
        """Returns the spec of the first run, and how each other run's differs from it."""
        specs = [run.spec() for run in self._selected(query).values()]
        return {"spec": specs[0], "differences": [spec_differences(specs[0], spec) for spec in specs[1:]]}

    def _timeline(self, query: Query) -> Any:
        return self._run(query).spans(int(query["step"]))

    def _samples(self, query: Query) -> Any:
        return _list_samples(self._selected(query), query)

    def _sample(self, query: Query) -> Any:
        kind = checked_kind(query["kind"])
        whole = query.get("whole") == "1"
        return self._run(query).sample(kind, int(query["step"]), int(query["line"]), whole=whole)

    def _group(self, query: Query) -> Any:
        kind, step = checked_kind(query["kind"]), int(query["step"])
        return self._run(query).group(kind, step, query["row"], query.get("dataset", ""))

    def _image(self, query: Query) -> Any:
        return self._run(query).image(query["digest"])

    def _history(self, query: Query) -> Any:
        return self._run(query).history(query["row"], query.get("dataset", ""))

    def _search(self, query: Query) -> Any:
        text = query["text"]
        if not text.strip() or len(text) > _MAX_SEARCH_LENGTH:
            raise ValueError(f"search for 1 to {_MAX_SEARCH_LENGTH} characters")
        before = int(query["before"]) if query.get("before") else None
        return search(self._run(query).folder.rollouts, checked_kind(query["kind"]), text, before)


def _list_samples(runs: Mapping[int, ViewedRun], filters: Mapping[str, str]) -> dict[str, Any]:
    """Returns one page of samples, or of groups, and how much of the runs is indexed.

    `runs`: by the number that the page knows them by, which every row has as `run`.

    index of a run ─▶ its rows in order ─┐
    index of a run ─▶ its rows in order ─┴─▶ merged ─▶ one page ─▶ beginnings of prompts and responses
    """
    _wait_for_newest(runs)
    # Taken before the query: a page that is told of all files does not ask again.
    progress = [run.indexer.progress for run in runs.values()]
    index_progress = {
        "files": sum(own.files for own in progress),
        "indexed": sum(own.indexed for own in progress),
        "error": next((own.error for own in progress if own.error), ""),
    }
    query = queries.query_of(filters)
    first = max(0, int(filters.get("offset") or 0))
    with ExitStack() as stack:
        indexes = {
            number: stack.enter_context(closing(connect(run.indexer.path))) for number, run in runs.items()
        }
        pages = [_numbered(number, query.rows(index, first + _PAGE)) for number, index in indexes.items()]
        rows = list(islice(heapq.merge(*pages, key=query.sort_key), first, first + _PAGE))
        counts = [query.count(index) for index in indexes.values()]
        names = [queries.list_names(index, query.kind) for index in indexes.values()]
        problems = [
            f"{runs[number].folder.name}: {problem}" if len(runs) > 1 else problem
            for number, index in indexes.items()
            for problem in queries.list_problems(index)
        ]
    for number, run in runs.items():
        run.add_quotes([row for row in rows if row["run"] == number])
    return {
        "rows": rows,
        "count": sum(counts),
        "is_exact": all(count < queries.MAX_COUNTED for count in counts),
        "page": _PAGE,
        "index": index_progress,
        "problems": problems,
        "names": {field: sorted({name for own in names for name in own[field]}) for field in queries.NAMED},
    }


def _numbered(number: int, rows: Iterable[sqlite3.Row]) -> Iterator[dict[str, Any]]:
    return ({"run": number, **row} for row in rows)


def _wait_for_newest(runs: Mapping[int, ViewedRun]) -> None:
    indexers = [run.indexer for run in runs.values()]  # each starts when it is first asked for
    deadline = time.monotonic() + _FIRST_SECONDS
    for indexer in indexers:
        indexer.ready.wait(max(0.0, deadline - time.monotonic()))


def sweep_tables(sweeps: Sequence[SweepReader], runs: Sequence[ViewedRun]) -> Iterator[dict[str, Any]]:
    """Yields each sweep's table, in which a trial has the number of its run, or None if the page lacks it.

    The table of a sweep that cannot be read has only `name` and `problem`.
    """
    numbers = {run.folder.path.resolve(): number for number, run in enumerate(runs)}
    for sweep in sweeps:
        try:
            table = sweep.table()
        except RunFolderError as error:
            yield {"name": sweep.path.name, "problem": str(error)}
            continue
        for trial in table["trials"]:
            trial["run"] = numbers.get((sweep.path / trial["name"]).resolve())
        yield table
