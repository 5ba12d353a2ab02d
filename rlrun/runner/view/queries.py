"""What lists of samples and groups ask an index: which rows, and in which order."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_COUNTED = 100_000
"""Matching samples of a run are counted up to this number."""
NAMED = ("status", "dataset")
"""Columns whose values a list can be filtered by."""
_ORDERS = {
    "newest": ("-step", "line"),
    "oldest": ("step", "line"),
    "best": ("-reward", "-step", "-line"),
    "worst": ("reward", "-step", "line"),
    "longest": ("-tokens", "-step", "line"),
    "shortest": ("tokens", "-step", "line"),
    "disagreed": ("-spread", "-step", "line"),
}
"""The columns that rows are sorted by; a minus sorts from the largest value down."""
_SAMPLES = "kind, step, line, id, row, dataset, reward, tokens, status, failed, verdicts, version"
_GROUPS = "kind, step, line, row, dataset, samples, mean, spread"
_CONDITIONS: Mapping[str, tuple[str, type]] = {
    "from_step": ("step >= ?", int),
    "to_step": ("step <= ?", int),
    "status": ("status = ?", str),
    "dataset": ("dataset = ?", str),
    "min_reward": ("reward >= ?", float),
    "max_reward": ("reward <= ?", float),
    "min_tokens": ("tokens >= ?", int),
    "max_tokens": ("tokens <= ?", int),
    "row": ("row = ?", str),
}
"""Conditions by the name of the parameter that sets them, with the type of its value."""
_OF_GROUPS = ("kind", "from_step", "to_step", "row")
"""The parameters that apply to groups."""


@dataclass(frozen=True, slots=True)
class IndexQuery:
    """A list of samples, or of the groups whose rewards differ most, asked of the index of each run."""

    kind: str
    columns: str
    table: str
    condition: str
    values: list[Any]
    order: tuple[str, ...]

    def rows(self, index: sqlite3.Connection, most: int) -> Iterator[sqlite3.Row]:
        """Returns the first `most` rows that match, in order, as a cursor."""
        order = ", ".join(f"{name[1:]} DESC" if name.startswith("-") else name for name in self.order)
        query = f"SELECT {self.columns} FROM {self.table} WHERE {self.condition} ORDER BY {order} LIMIT ?"
        return index.execute(query, (*self.values, most))

    def count(self, index: sqlite3.Connection) -> int:
        """Returns how many rows match, MAX_COUNTED at most."""
        counted = f"SELECT 1 FROM {self.table} WHERE {self.condition} LIMIT {MAX_COUNTED}"
        [(count,)] = index.execute(f"SELECT COUNT(*) FROM ({counted})", self.values)
        return int(count)

    @property
    def sort_key(self) -> Callable[[Mapping[str, Any]], tuple[float, ...]]:
        """The order as a key, by which the rows of several indexes are merged."""
        columns = [(name.removeprefix("-"), -1 if name.startswith("-") else 1) for name in self.order]
        return lambda row: tuple(sign * row[name] for name, sign in columns)


def query_of(filters: Mapping[str, str]) -> IndexQuery:
    """Returns the query of a list's parameters.

    Raises ValueError for a value that is not a number, KeyError for an unknown order.
    """
    kind, order = filters.get("kind") or "step", filters.get("order") or "newest"
    columns, is_groups = _ORDERS[order], order == "disagreed"
    applied = {name: filters.get(name) for name in (_OF_GROUPS if is_groups else (*_CONDITIONS, "failed"))}
    conditions, values = ["kind = ?"], [kind]
    for name, (condition, convert) in _CONDITIONS.items():
        if applied.get(name):
            conditions.append(condition)
            values.append(convert(applied[name]))
    if applied.get("failed"):
        conditions.append("failed")
    if columns[0].endswith(("reward", "spread")):
        conditions.append(f"{columns[0].removeprefix('-')} IS NOT NULL")
    table = "groups" if is_groups else "samples"
    return IndexQuery(
        kind, _GROUPS if is_groups else _SAMPLES, table, " AND ".join(conditions), values, columns
    )


def list_names(index: sqlite3.Connection, kind: str) -> dict[str, list[str]]:
    """Returns the statuses and datasets that samples of this kind have."""
    names: dict[str, list[str]] = {field: [] for field in NAMED}
    for field, name in index.execute("SELECT field, name FROM names WHERE kind = ? ORDER BY name", (kind,)):
        names[field].append(name)
    return names


def list_problems(index: sqlite3.Connection) -> list[str]:
    """Returns what could not be read: broken lines and files."""
    rows = index.execute("SELECT problem FROM files WHERE problem != '' ORDER BY step DESC LIMIT 50")
    return [problem for (text,) in rows for problem in text.splitlines()]
