"""Makes preferences of a run's samples: of two responses to one prompt, the one with the larger reward."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rlrun.plugins.types import Status
from rlrun.runner.records.packed_lines import UnreadableFile, read_records
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.paths import display_path
from rlrun.specs.step_names import ROLLOUTS, list_step_paths

Record = Mapping[str, Any]


def preferences_of(folder: RunFolder, gap: float) -> Iterator[dict[str, Any]]:
    """Yields a row for each group of the steps' saved samples: the best and the worst response.

    Rows have the keys that the data source `jsonl` reads by default, and `rejected`; the difference of the
    rewards is the `margin` of their metadata. Groups whose rewards differ by less than `gap` have no row.
    Samples that did not end by themselves are left out, and so are those with images, whose files rows would
    have to name. Raises UnreadableFile for a file that is damaged or that rlrun did not write.
    """
    for step, path in list_step_paths(folder.rollouts, ROLLOUTS).items():
        groups: dict[str, list[Record]] = {}
        try:
            for record in read_records(path):
                if _counts(record):
                    groups.setdefault(record["id"].rpartition("-")[0], []).append(record)
        except (KeyError, TypeError, AttributeError) as error:
            raise UnreadableFile(f"{display_path(path)} has a sample that cannot be read: {error}") from None
        for name, records in groups.items():
            yield from _preference(f"{step}-{name}", records, gap)


def _counts(record: Record) -> bool:
    is_whole = record["status"] == Status.COMPLETED and record["reward"] is not None
    return is_whole and not record.get("images")


def _preference(name: str, records: Iterable[Record], gap: float) -> Iterator[dict[str, Any]]:
    ranked = sorted(records, key=lambda record: record["reward"])
    worst, best = ranked[0], ranked[-1]
    margin = best["reward"] - worst["reward"]
    if margin > 0 and margin >= gap:
        yield {
            "id": name,
            "prompt": best["prompt"],
            "response": best["response"],
            "rejected": worst["response"],
            "metadata": {"margin": margin},
        }
