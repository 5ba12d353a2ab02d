"""Lists of the samples of one or several runs, in one order, a page at a time.

index of a run ─▶ its rows in order ─┐
index of a run ─▶ its rows in order ─┴─▶ merged ─▶ one page ─▶ beginnings of prompts and responses
"""

import heapq
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

from rlrun.runner.view import queries
from rlrun.runner.view.index import connect
from rlrun.runner.view.viewed_run import ViewedRun

PAGE = 100
"""Rows of one page."""
_FIRST_SECONDS = 2.0
"""How long the first list waits for the newest samples of its runs."""


def list_samples(runs: Mapping[int, ViewedRun], filters: Mapping[str, str]) -> dict[str, Any]:
    """Returns one page of samples, or of groups, and how much of the runs is indexed.

    `runs`: by the number that the page knows them by, which every row has as `run`.
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
        pages = [_numbered(number, query.rows(index, first + PAGE)) for number, index in indexes.items()]
        rows = list(islice(heapq.merge(*pages, key=query.sort_key), first, first + PAGE))
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
        "page": PAGE,
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
