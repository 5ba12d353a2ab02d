"""Collects what a page without a server contains: all curves, specs, some timelines and some samples.

Samples are taken from steps that are evenly spaced over the run, the last one included, until they fill a
budget.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import permutations
from typing import Any, get_args

from rlrun.runner.view import queries
from rlrun.runner.view.answers import SweepReader, sweep_tables
from rlrun.runner.view.curves import reduce
from rlrun.runner.view.index import connect
from rlrun.runner.view.page import to_json
from rlrun.runner.view.summary import as_list, quote
from rlrun.runner.view.viewed_run import ViewedRun, spec_differences
from rlrun.specs.step_names import Kind

SAMPLE_BYTES = 6 << 20
"""The samples of all runs together, as JSON; compressed they need a fifth of it."""
IMAGE_BYTES = 4 << 20
"""The images of one run."""
_STEPS = 40
"""The most steps per kind whose samples are tried."""
_SAMPLES_PER_STEP = 100
_TIMELINES = 50
_MAX_TEXT_LENGTH = 20_000
"""Characters of one text."""


def collect(runs: Sequence[ViewedRun], sweeps: Sequence[SweepReader] = ()) -> dict[str, Any]:
    """Returns the data of a page without a server. `sweeps`: those that the runs are trials of."""
    specs = [run.spec() for run in runs]
    differences = {
        f"{first}-{second}": spec_differences(specs[first], specs[second])
        for first, second in permutations(range(len(runs)), 2)
    }
    budget = SAMPLE_BYTES // max(1, len(runs))
    return {
        "runs": [_collect_run(run, budget) for run in runs],
        "sweeps": list(sweep_tables(sweeps, runs)),
        "differences": differences,
    }


def evenly_spaced(steps: Sequence[int], most: int) -> list[int]:
    """Returns at most `most` of the steps, the first and the last included, the last first."""
    if len(steps) <= most:
        return sorted(steps, reverse=True)
    ordered = sorted(steps)
    chosen = {ordered[round(number * (len(ordered) - 1) / (most - 1))] for number in range(most)}
    return sorted(chosen, reverse=True)


def digests_of(record: dict[str, Any]) -> list[str]:
    """Returns the digests of a record's images: of the prompt, then of the response."""
    images = record.get("images")
    if not isinstance(images, dict):
        return []
    placed = [item for part in ("prompt", "response") for item in as_list(images.get(part))]
    return [str(item[0]) for item in placed if isinstance(item, list) and item]


def _collect_run(run: ViewedRun, budget: int) -> dict[str, Any]:
    status = run.status()
    status["folder"] = ""  # a file that is shared need not tell where the run was
    timelines = {step: run.spans(step) for step in evenly_spaced(run.timelines.steps, _TIMELINES)}
    for line in timelines.values():
        line["steps"] = []
    rows: list[dict[str, Any]] = []
    records: dict[str, Any] = {}
    for kind in get_args(Kind):
        for row, record in _choose_samples(run, kind, budget // 3):
            rows.append(row)
            records[f"{kind}-{row['step']}-{row['line']}"] = record
    with closing(connect(run.indexer.path)) as index:
        problems = queries.list_problems(index)
        [(count,)] = index.execute("SELECT COUNT(*) FROM samples")
    return {
        "status": status,
        "curves": {name: reduce(run.curves.curve(name)) for name in status["names"]},
        "spec": run.spec(),
        "timelines": timelines,
        "samples": rows,
        "records": records,
        "images": _images(run, records),
        "problems": problems,
        "note": f"this file has {len(rows):,} of {count:,} saved samples" if len(rows) < count else "",
    }


def _images(run: ViewedRun, records: dict[str, Any]) -> dict[str, str]:
    """Returns images of these samples by digest, until they have IMAGE_BYTES."""
    images: dict[str, str] = {}
    size = 0
    for digest in dict.fromkeys(digest for record in records.values() for digest in digests_of(record)):
        try:
            image = run.image(digest)
        except (OSError, ValueError):
            continue
        size += len(image)
        if size > IMAGE_BYTES:
            break
        images[digest] = image
    return images


def _choose_samples(
    run: ViewedRun, kind: Kind, budget: int
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields summaries and records until their JSON fills `budget` bytes, an equal share for each step."""
    steps = evenly_spaced(run.sample_steps(kind), _STEPS)
    for number, step in enumerate(steps):
        share = budget // (len(steps) - number)
        for row in _rows(run, kind, step):
            try:
                record = run.sample(kind, step, row["line"], whole=False)
            except (OSError, ValueError):
                continue
            row.update(quote(record))
            _cut_texts(record)
            size = len(to_json(record)) + len(to_json(row))
            if size > share:
                break
            share -= size
            budget -= size
            yield row, record


def _rows(run: ViewedRun, kind: Kind, step: int) -> list[dict[str, Any]]:
    with closing(connect(run.indexer.path)) as index:
        bounds = {"kind": kind, "from_step": str(step), "to_step": str(step)}
        return [dict(row) for row in queries.query_of(bounds).rows(index, _SAMPLES_PER_STEP)]


def _cut_texts(record: dict[str, Any]) -> None:
    for name in ("prompt", "response"):
        text = record.get(name)
        if isinstance(text, str) and len(text) > _MAX_TEXT_LENGTH:
            record[name] = text[:_MAX_TEXT_LENGTH]
            record.setdefault("cut", {})[name] = len(text) - _MAX_TEXT_LENGTH
