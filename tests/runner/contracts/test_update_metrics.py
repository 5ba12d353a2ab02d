"""How the metrics of optimizer steps and of ranks become those of a step."""

import re
from pathlib import Path

import pytest

from rlrun.runner.contracts.carriers import DIFFERENCE
from rlrun.runner.contracts.update_metrics import COMBINATIONS, combine_ranks, combine_updates


@pytest.mark.parametrize(
    ("name", "values", "combined"),
    [
        ("train/loss", [1.0, 3.0], 2.0),
        ("train/lr", [0.1, 0.2], 0.2),
        ("train/critic/lr", [0.1, 0.2], 0.2),
        ("train/tokens", [5.0, 7.0], 12.0),
        ("train/skipped_steps", [1.0, 0.0], 1.0),
        ("train/expert_load_max", [1.5, 1.25], 1.5),
        ("train/expert_load_min", [0.25, 0.75], 0.25),
        (DIFFERENCE, [1.0, 2.0], 1.5),
        (f"{DIFFERENCE}_max", [3.0, 2.0], 3.0),
        ("perf/forward_time", [1.0, 2.0], 3.0),
        ("perf/precision_emulated", [1.0, 1.0], 1.0),
        pytest.param("train/ratio_max", [3.0, 2.0], 2.5, id="an algorithm's metrics are means"),
        pytest.param("train/schedule/lr", [3.0, 2.0], 2.5, id="whatever their names end in"),
    ],
)
def test_updates_of_a_step_become_one_number(name: str, values: list[float], combined: float) -> None:
    assert combine_updates([{name: value} for value in values]) == {name: combined}


def test_a_metric_that_one_update_lacks_is_the_others() -> None:
    assert combine_updates([{"train/loss": 1.0}, {}]) == {"train/loss": 1.0}


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    ranks = [
        {"train/loss": 1.0, "perf/forward_time": time, "perf/precision_emulated": 1.0} for time in (2, 3)
    ]
    assert combine_ranks(ranks) == {"train/loss": 1.0, "perf/forward_time": 3, "perf/precision_emulated": 1.0}


def test_every_declared_metric_is_documented() -> None:
    documented = re.findall("`([a-z_/]+)`", Path("docs/metrics.md").read_text())
    documented += [f"{DIFFERENCE.removeprefix('train/')}_max"]
    unnamed = {"critic/loss"}  # value_loss, which is its only term, is reported instead
    declared = {name.partition("/")[2] for name in COMBINATIONS} - unnamed
    assert declared <= set(documented), declared - set(documented)
