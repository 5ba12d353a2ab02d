"""The choice of rows by difficulty: bins, draws, and the number of samples."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.data.curriculum import Bin, Curriculum, bin_names, divided_budget
from rlrun.plugins.registry import build, checked_params, load
from rlrun.plugins.testing import check_data, sample
from rlrun.plugins.types import Group, Prompt, Row

LEVELS = ["easy", "hard"]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """Returns a file of 40 rows of two levels, one after the other."""
    path = tmp_path / "rows.jsonl"
    lines = [{"id": str(i), "prompt": f"question {i}", "level": LEVELS[i % 2]} for i in range(40)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def curriculum(rows: Path, **keys: Any) -> Curriculum:
    source = {"type": "jsonl", "path": str(rows), "metadata_columns": ["level"]}
    return build("data", "curriculum", {"source": source, "key": "level", **keys})


def result(row: Row, rewards: list[float], length: int = 10) -> Group:
    prompt = Prompt(row, 0, np.ones(3, dtype=np.int32))
    samples = [sample(reward=reward, length=length, id=f"0-{n}") for n, reward in enumerate(rewards)]
    for one in samples:
        one.prompt = prompt
    return Group(prompt, samples)


def shares(source: Curriculum, outcome: dict[str, list[float]], lengths: dict[str, int], draws: int = 400):
    """Returns the share of each level among the last half of the draws, if groups always end like this."""
    levels = []
    for _ in range(draws):
        row = source[source.choose(8).row]
        level = row.metadata["level"]
        levels.append(level)
        source.observe(result(row, outcome[level], lengths[level]))
    counts = Counter(levels[draws // 2 :])
    return {level: counts[level] / (draws // 2) for level in LEVELS}


SAME_LENGTH = {"easy": 10, "hard": 10}
MIXED, SOLVED, UNSOLVED = [0.0, 1.0] * 4, [1.0] * 8, [0.0] * 8


@pytest.mark.parametrize(
    ("outcome", "lengths", "keys", "share"),
    [
        ({"easy": SOLVED, "hard": MIXED}, SAME_LENGTH, {}, (0.9, 1.0)),
        ({"easy": MIXED, "hard": UNSOLVED}, SAME_LENGTH, {}, (0.0, 0.1)),
        ({"easy": MIXED, "hard": MIXED}, SAME_LENGTH, {}, (0.2, 0.8)),
        ({"easy": SOLVED, "hard": UNSOLVED}, SAME_LENGTH, {}, (0.2, 0.8)),
        ({"easy": MIXED, "hard": MIXED}, {"easy": 10, "hard": 40}, {"per_token": True}, (0.0, 0.1)),
        ({"easy": MIXED, "hard": MIXED}, {"easy": 10, "hard": 40}, {}, (0.2, 0.8)),
    ],
    ids=["the easy are solved", "the hard are never", "both teach", "neither", "long", "long, by groups"],
)
def test_prompts_come_from_bins_that_teach(rows, outcome, lengths, keys, share) -> None:
    low, high = share
    assert low <= shares(curriculum(rows, **keys), outcome, lengths)["hard"] <= high


def test_the_choice_follows_a_policy_that_improves(rows) -> None:
    source = curriculum(rows, memory=32)
    assert shares(source, {"easy": MIXED, "hard": UNSOLVED}, SAME_LENGTH)["easy"] > 0.8
    assert shares(source, {"easy": SOLVED, "hard": MIXED}, SAME_LENGTH)["hard"] > 0.8


def test_the_rows_of_a_bin_come_in_epochs(rows) -> None:
    source = curriculum(rows)
    drawn: dict[str, list[int]] = {"easy": [], "hard": []}
    for _ in range(200):
        index = source.choose(8).row
        drawn[LEVELS[index % 2]].append(index)
    for level, indices in drawn.items():
        first, second = sorted(indices[:20]), sorted(indices[20:40])
        assert first == second == list(range(LEVELS.index(level), 40, 2))
        assert indices[:20] != indices[20:40]


def test_choices_repeat_from_a_saved_state_and_differ_by_seed(rows) -> None:
    check_data("curriculum", curriculum(rows).params.model_dump())
    orders = [[curriculum(rows, seed=seed).choose(8).row for _ in range(1)] for seed in range(8)]
    assert len({order[0] for order in orders}) > 1


def test_metrics_show_the_choice(rows) -> None:
    source = curriculum(rows)
    shares(source, {"easy": SOLVED, "hard": MIXED}, SAME_LENGTH)
    metrics = source.metrics()
    assert metrics["curriculum/easy/prompts"] + metrics["curriculum/hard/prompts"] == 400
    assert metrics["curriculum/easy/prompts"] < 20
    assert metrics["curriculum/easy/signal"] < 0.9 < metrics["curriculum/hard/signal"]
    assert metrics["curriculum/easy/solve_rate"] > 0.6
    assert metrics["curriculum/hard/solve_rate"] == pytest.approx(0.5, abs=0.01)
    assert source.metrics()["curriculum/hard/prompts"] == 0


def test_the_budget_goes_where_samples_make_rewards_differ(rows) -> None:
    source = curriculum(rows, mean_samples=4)
    shares(source, {"easy": [1.0] * 19 + [0.0], "hard": MIXED}, SAME_LENGTH)
    samples: dict[str, list[int]] = {level: [] for level in LEVELS}
    for _ in range(400):
        choice = source.choose(8)
        samples[LEVELS[choice.row % 2]].append(choice.samples)
    assert set(samples["easy"]) < {2, 3, 4} and max(samples["hard"]) <= 8
    assert np.mean(samples["easy"]) < np.mean(samples["hard"])
    assert np.mean([*samples["easy"], *samples["hard"]]) == pytest.approx(4, abs=0.25)


@pytest.mark.parametrize(
    ("solve_rates", "weights", "budget", "samples"),
    [
        ([0.5], [3.0], 4.5, [4.5]),
        ([0.5, 0.5], [1.0, 1.0], 4, [4, 4]),
        ([0.0, 0.5], [1.0, 1.0], 4, [2, 6]),
        ([0.0, 0.5], [3.0, 1.0], 3, [2, 6]),
        ([0.0, 0.5], [1.0, 1.0], 6, [4, 8]),
        ([0.9, 0.5], [1.0, 1.0], 3, [2, 4]),
        ([0.98, 0.02], [1.0, 1.0], 2, [2, 2]),
        ([0.5, 0.2], [0.0, 1.0], 5, [4, 5]),
        ([0.3, 0.4], [0.3, 0.7], 7.9, [8, 7.857]),
        ([0.02, 0.2, 0.98], [1.0, 1.0, 1.0], 4, [2, 8, 2]),
    ],
    ids=[
        "one bin",
        "equal",
        "one hopeless",
        "by weight",
        "at the most",
        "solved",
        "least",
        "new",
        "nearly all",
        "two hopeless",
    ],
)
def test_the_division_of_a_budget(
    solve_rates: list[float], weights: list[float], budget: float, samples: list[float]
) -> None:
    divided = divided_budget(solve_rates, weights, budget, 8)
    assert divided == pytest.approx(samples, abs=0.01)
    assert np.average(divided, weights=weights) == pytest.approx(budget)


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["a", "b", "a"], ["a", "b", "a"]),
        ([2, 3, 2], ["2", "3", "2"]),
        ([0.25, 0.5, 0.5], ["0.25", "0.5", "0.5"]),
        ([*map(float, range(9))], ["0-2.67"] * 3 + ["2.67-5.33"] * 3 + ["5.33-8"] * 3),
        ([0.0] * 6 + [1.0, 2.0, 3.0], ["0-0.333"] * 6 + ["0.333-3"] * 3),
    ],
    ids=["texts", "whole numbers", "fractions", "ranges", "most are equal"],
)
def test_bins_are_values_or_ranges(values: list[Any], names: list[str]) -> None:
    assert bin_names(values, 3) == names


def test_bins_are_refused_if_the_values_are_too_many_texts(rows) -> None:
    with pytest.raises(ValueError, match="the curriculum's key has 4 values, such as 'a', for 3 bins"):
        bin_names(list("abcd"), 3)
    with pytest.raises(
        ValueError, match=r"row 1: its metadata have no text or number at 'depth'.*they have level"
    ):
        curriculum(rows, key="depth")


def test_a_preview_has_rows_and_those_without_the_key(rows) -> None:
    source = {"type": "jsonl", "path": str(rows), "metadata_columns": ["level"]}
    for key, kind in (("level", Row), ("depth", ValueError)):
        params = checked_params("data", "curriculum", {"source": source, "key": key})
        assert [type(row) for row in load("data", "curriculum").preview(params, 2)] == [kind] * 2


def test_a_state_of_other_bins_is_refused(rows) -> None:
    state = curriculum(rows).state()
    del state["bins"]["hard"]
    with pytest.raises(ValueError, match="has the bins easy, this one has easy, hard"):
        curriculum(rows).restore(state)


def test_a_bin_without_results_is_expected_to_teach() -> None:
    assert Bin().signal == 0.8
    assert Bin().solve_rate == 0.5
