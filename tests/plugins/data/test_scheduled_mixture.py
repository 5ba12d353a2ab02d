"""Sampling weights that follow the number of prompts: shares, epochs, the saved state, and whole jobs."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rlrun.plugins.data.scheduled_mixture import ScheduledMixture
from rlrun.plugins.registry import build, checked_params, load
from rlrun.plugins.testing import check_data
from tests.local_job import Lines, run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1 }
checkpoint = { interval = 2, export_hf = false }

[data]
type = "scheduled_mixture"
apply_chat_template = false

[[data.sources]]
type = "jsonl"
path = "FOLDER/first.jsonl"
label_key = "label"
weight = [[0, 1.0], [16, 0.0]]

[[data.sources]]
type = "jsonl"
path = "FOLDER/second.jsonl"
label_key = "label"
weight = [[0, 0.0], [16, 1.0]]

[rollout]
batch_size = 8
samples_per_prompt = 2
max_prompt_tokens = 64
max_response_tokens = 4

[[rewards]]
type = "exact_match"

[trainer]
steps = 4
lr = 1e-3
dtype = "float32"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder with the rows of two sources."""
    for name, count in (("first", 10), ("second", 6)):
        rows = [
            {"id": f"{name}{i}", "prompt": f"say {name} {i}", "label": "1", "response": "one"}
            for i in range(count)
        ]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return tmp_path


def params(folder: Path, *weights: Any, **keys: Any) -> dict[str, Any]:
    sources = [
        {"type": "jsonl", "path": str(folder / f"{name}.jsonl"), "weight": weight}
        for name, weight in zip(("first", "second"), weights, strict=True)
    ]
    return {"sources": sources, **keys}


def drawn(source: ScheduledMixture, count: int) -> list[str]:
    return [source[source.choose(4).row].id for _ in range(count)]


def shares(ids: list[str]) -> float:
    """Returns the first source's share of the rows."""
    return sum(id.startswith("0:") for id in ids) / len(ids)


def test_shares_follow_the_schedule(folder: Path) -> None:
    source = build("data", "scheduled_mixture", params(folder, [[0, 3.0], [1000, 3.0], [2000, 0.0]], 1.0))
    ids = drawn(source, 3000)
    assert shares(ids[:1000]) == pytest.approx(0.75, abs=0.05)
    expected = sum(3 * (1 - n / 1000) / (3 * (1 - n / 1000) + 1) for n in range(1000)) / 1000
    assert shares(ids[1000:2000]) == pytest.approx(expected, abs=0.05)
    assert shares(ids[2000:]) == 0


def test_the_rows_of_a_source_come_in_epochs(folder: Path) -> None:
    source = build("data", "scheduled_mixture", params(folder, 1.0, 1.0))
    first = [id for id in drawn(source, 200) if id.startswith("0:")]
    epochs = [first[start : start + 10] for start in range(0, 80, 10)]
    assert all(max(Counter(epoch).values()) == 1 for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_choices_repeat_and_continue_from_their_state(folder: Path) -> None:
    given = params(folder, [[0, 1.0], [20, 0.0]], [[0, 0.0], [20, 1.0]])
    assert len(check_data("scheduled_mixture", given)) == 16
    whole = drawn(build("data", "scheduled_mixture", given), 40)
    first, second = (build("data", "scheduled_mixture", given) for _ in range(2))
    start = drawn(first, 15)
    second.restore(json.loads(json.dumps(first.state())))
    assert [*start, *drawn(second, 25)] == whole
    other = drawn(build("data", "scheduled_mixture", given | {"seed": 1}), 40)
    assert other != whole
    with pytest.raises(ValueError, match="has 2 sources, this one has 1; resume with the sources"):
        build("data", "scheduled_mixture", {"sources": [given["sources"][0] | {"weight": 1.0}]}).restore(
            first.state()
        )


def test_metrics_count_the_prompts_of_each_source_once(folder: Path) -> None:
    source = build("data", "scheduled_mixture", params(folder, [[0, 1.0], [10, 0.0]], 1.0))
    drawn(source, 10)
    metrics = source.metrics()
    assert metrics["mixture/0/prompts"] + metrics["mixture/1/prompts"] == 10
    assert (metrics["mixture/0/share"], metrics["mixture/1/share"]) == (0, 1)
    assert source.metrics()["mixture/1/prompts"] == 0


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (0.0, [[0, 1.0], [10, 0.0]], "all weights are 0 after 10 prompts"),
        ([[5, 1.0], [5, 0.0]], 1.0, "prompts in the weight of source 0 must grow"),
        (-1.0, 1.0, "greater than or equal to 0"),
        ([], 1.0, "at least 1 item"),
        (float("inf"), 1.0, "finite"),
    ],
)
def test_a_weight_that_is_none_is_refused(first: Any, second: Any, message: str, folder: Path) -> None:
    with pytest.raises((ValidationError, ValueError), match=message):
        load("data", "scheduled_mixture").Params.model_validate(params(folder, first, second))


def test_a_source_without_rows_is_named(folder: Path) -> None:
    (folder / "second.jsonl").write_text("")
    with pytest.raises(ValueError, match=r"source 1 \(jsonl\): .* has no rows"):
        build("data", "scheduled_mixture", params(folder, 1.0, 1.0))


def test_rows_of_each_source_are_previewed(folder: Path) -> None:
    checked = checked_params("data", "scheduled_mixture", params(folder, 1.0, [[0, 0.0], [5, 1.0]]))
    rows = list(load("data", "scheduled_mixture").preview(checked, 4))
    assert [row.metadata["source"] for row in rows] == [0, 0, 1, 1]


def job(folder: Path, run: str, *changes: str) -> Lines:
    if not (folder / "model").exists():
        make_tiny_model(folder / "model", "qwen3")
    (folder / "job.toml").write_text(SPEC.replace("FOLDER", str(folder)))
    return run_local(folder / "job.toml", folder / run, changes)


def test_a_resumed_job_continues_bit_for_bit(folder: Path) -> None:
    whole = job(folder, "whole").curve
    first = job(folder, "parts", "trainer.steps=2").curve
    rest = job(folder, "parts").curve
    assert [*first, *rest] == whole
    prompts = [line["rollout/mixture/0/prompts"] for line in whole]
    assert prompts[0] > prompts[1] > prompts[2] == 0
    assert whole[-1]["rollout/mixture/1/share"] == 1
