"""The questions that the page asks, and their answers as JSON values. Every question only reads."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlrun.models.json_files import parse_json
from rlrun.runner.view.curves import reduce
from rlrun.runner.view.sample_lists import list_samples
from rlrun.runner.view.search import search
from rlrun.runner.view.sweep_tables import SweepReader, sweep_tables
from rlrun.runner.view.viewed_run import ViewedRun, checked_kind, spec_differences

Query = Mapping[str, str]
_MAX_SEARCH_LENGTH = 1000


class NotFound(ValueError):
    """Raised for a question or a run that does not exist."""


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
        return list_samples(self._selected(query), query)

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
