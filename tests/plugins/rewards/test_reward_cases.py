"""Rewards against recorded cases: `contract` rows hold, `quirk` rows give what our docstrings promise."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.registry import build
from rlrun.plugins.testing import check_reward, sample

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parents[2] / "data" / "reward_cases.jsonl").read_text().splitlines()
]
SHIPPED: Mapping[str, tuple[str, dict[str, Any]]] = {
    "math": ("math", {}),
    "deepscaler": ("deepscaler", {}),
    "dapo": ("dapo", {}),
    "f1": ("f1", {}),
    "boxed_f1": ("f1", {"boxed": True}),
    "gpqa": ("gpqa", {}),
    "boxed_gpqa": ("gpqa", {"boxed": True}),
    "boxed_math": ("math", {}),
    "boxed_dapo": ("dapo", {}),
}
OURS_INSTEAD: Mapping[str, float] = {
    "math-043": 1,
    "math-046": 1,
    "math-050": 1,
    "math-078": 1,
    "boxed_math-166": 1,
    "boxed_dapo-167": -1,
    "dapo-119": 1,
    "dapo-124": 1,
    "dapo-135": 1,
    "deepscaler-104": 1,
    "f1-161": 0,
    "gpqa-183": 1,
    "gpqa-190": 1,
}
ANOTHER_REWARD_BY_METADATA = {"f1-204"}
"""Scored through `rlrun score` in tests/cli/test_score.py."""
SERVED = {"remote_rm"}
"""Scored against a server in test_remote_rewards.py."""


def plugin_of(row: Mapping[str, Any]) -> str:
    return str(row["rm_type"]).strip()


def score(row: Mapping[str, Any]) -> float:
    name, params = SHIPPED[plugin_of(row)]
    graded = sample(row["response"] or "", label=row["label"], metadata=row.get("metadata"))
    scored = build("rewards", name, params).score(graded)
    return float(scored["score"] if isinstance(scored, Mapping) else scored)


def rows_of(kind: str) -> list[Any]:
    shipped = [row for row in ROWS if row["class"] == kind and plugin_of(row) in SHIPPED]
    return [pytest.param(row, id=row["id"]) for row in shipped if row["id"] not in ANOTHER_REWARD_BY_METADATA]


@pytest.mark.parametrize("row", rows_of("contract"))
def test_contract_rows_hold(row: Mapping[str, Any]) -> None:
    expected = row["expected"]["reward"]
    assert score(row) == pytest.approx(expected["score"] if isinstance(expected, dict) else expected)


@pytest.mark.parametrize("row", rows_of("quirk"))
def test_quirk_rows_give_the_sensible_score(row: Mapping[str, Any]) -> None:
    assert score(row) == OURS_INSTEAD[row["id"]]


def test_no_reward_is_left_out() -> None:
    assert {plugin_of(row) for row in ROWS} - SHIPPED.keys() == SERVED


@pytest.mark.parametrize("name", sorted(set(SHIPPED)))
def test_rewards_keep_the_contract_on_all_rows(name: str) -> None:
    plugin, params = SHIPPED[name]
    rows = [row for row in ROWS if plugin_of(row) == name]
    samples = [
        sample(row["response"] or "", label=row["label"], metadata=row.get("metadata")) for row in rows
    ]
    check_reward(plugin, params, samples)
