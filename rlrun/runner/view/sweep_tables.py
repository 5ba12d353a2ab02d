"""The tables of sweeps: their trials with values and metric, each with the number of its run on the page."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.view.viewed_run import ViewedRun


class SweepReader(Protocol):
    """A sweep on disk."""

    path: Path
    """Its folder, which contains the runs of its trials."""

    def table(self) -> dict[str, Any]:
        """Returns `name`, `metric`, `goal` ("max" or "min") and `trials`.

        A trial has `name`, `values`, `status`, `step`, `steps`, `score` and `best`. Raises RunFolderError.
        """
        ...


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
