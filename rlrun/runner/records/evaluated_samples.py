"""The samples that an evaluation has so far, which it continues from when it is resumed.

each group, as soon as it is scored ──▶ a line of evaluated.jsonl ──▶ the groups, when resumed
all groups                          ──▶ rollouts/eval-0.jsonl.zst, and evaluated.jsonl is removed
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rlrun.models.foreign_files import open_regular
from rlrun.models.json_files import parse_json
from rlrun.plugins.types import Group
from rlrun.runner.host.atomic_files import write_bytes
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_images import find_in_folder
from rlrun.runner.records.saved_rollouts import map_records, records_to_groups


def append_groups(folder: RunFolder, dataset: str, groups: Sequence[Group]) -> None:
    """Adds a line for each group, with all of its samples."""
    lines = []
    for group in groups:
        records = list(map_records(((group, sample) for sample in group.samples), whole=True))
        line = {"dataset": dataset, "samples": records}
        lines.append(json.dumps(line, ensure_ascii=False, default=str) + "\n")
    with folder.evaluated.open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write("".join(lines))


def read_earlier(folder: RunFolder) -> Mapping[str, Sequence[Group]]:
    """Returns the groups of each dataset that earlier launches finished; removes a line that a crash cut."""
    groups: dict[str, list[Group]] = {}
    lines, find_image = list(_complete_lines(folder)), find_in_folder(folder.rollouts)
    for _, record in lines:
        groups.setdefault(record["dataset"], []).extend(records_to_groups(record["samples"], find_image))
    if folder.evaluated.exists():
        write_bytes(folder.evaluated, b"".join(line for line, _ in lines))
    return groups


def _complete_lines(folder: RunFolder) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yields each line that is complete, and its content."""
    try:
        with open_regular(folder.evaluated) as file:
            lines = file.read().splitlines(keepends=True)
    except FileNotFoundError:
        return
    for line in lines:
        if not line.endswith(b"\n"):
            return
        yield line, parse_json(line)
