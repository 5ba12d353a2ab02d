"""Lists of samples and groups from an index: filtered, sorted, a page at a time."""

import sqlite3
from collections.abc import Mapping
from typing import Any

PAGE = 100
"""Rows of one page."""
_MAX_COUNTED = 100_000
"""Matching samples are counted up to this number."""
_ORDERS = {
    "newest": "step DESC, line",
    "oldest": "step, line",
    "best": "reward DESC, step DESC, line DESC",
    "worst": "reward, step DESC, line",
    "longest": "tokens DESC, step DESC, line",
    "shortest": "tokens, step DESC, line",
}
_COLUMNS = "kind, step, line, id, row, dataset, reward, tokens, status, failed, verdicts, version"
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


def where(filters: Mapping[str, str]) -> tuple[str, list[Any]]:
    """Returns the condition of a query and its values. Raises ValueError for a value that is not a number."""
    conditions, values = ["kind = ?"], [_kind(filters)]
    for name, (condition, kind) in _CONDITIONS.items():
        if filters.get(name):
            conditions.append(condition)
            values.append(kind(filters[name]))
    if filters.get("failed"):
        conditions.append("failed")
    if filters.get("order") in ("best", "worst"):
        conditions.append("reward IS NOT NULL")
    return " AND ".join(conditions), values


def list_samples(index: sqlite3.Connection, filters: Mapping[str, str]) -> dict[str, Any]:
    """Returns one page of the samples that match, in the order that `order` names, and how many match."""
    condition, values = where(filters)
    order = _ORDERS[filters.get("order") or "newest"]
    offset = max(0, int(filters.get("offset") or 0))
    query = f"SELECT {_COLUMNS} FROM samples WHERE {condition} ORDER BY {order} LIMIT {PAGE} OFFSET ?"
    rows = [dict(row) for row in index.execute(query, (*values, offset))]
    counted = f"SELECT COUNT(*) FROM (SELECT 1 FROM samples WHERE {condition} LIMIT {_MAX_COUNTED})"
    [(count,)] = index.execute(counted, values)
    return {"rows": rows, "count": count, "is_exact": count < _MAX_COUNTED, "page": PAGE}


def list_groups(index: sqlite3.Connection, filters: Mapping[str, str]) -> dict[str, Any]:
    """Returns the groups whose rewards differ most."""
    bounds = {name: filters[name] for name in ("kind", "from_step", "to_step", "row") if filters.get(name)}
    condition, values = where(bounds)
    offset = max(0, int(filters.get("offset") or 0))
    query = (
        f"SELECT kind, step, line, row, dataset, samples, mean, spread FROM groups WHERE {condition} "
        f"AND spread IS NOT NULL ORDER BY spread DESC, step DESC, line LIMIT {PAGE} OFFSET ?"
    )
    return {"rows": [dict(row) for row in index.execute(query, (*values, offset))], "page": PAGE}


def list_names(index: sqlite3.Connection, kind: str) -> dict[str, list[str]]:
    """Returns the statuses and datasets that samples of this kind have."""
    names: dict[str, list[str]] = {"status": [], "dataset": []}
    for field, name in index.execute("SELECT field, name FROM names WHERE kind = ? ORDER BY name", (kind,)):
        names[field].append(name)
    return names


def list_problems(index: sqlite3.Connection) -> list[str]:
    """Returns what could not be read: broken lines and files."""
    rows = index.execute("SELECT problem FROM files WHERE problem != '' ORDER BY step DESC LIMIT 50")
    return [problem for (text,) in rows for problem in text.splitlines()]


def _kind(filters: Mapping[str, str]) -> str:
    return filters.get("kind") or "step"
