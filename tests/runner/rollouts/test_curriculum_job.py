"""Whole jobs with a curriculum: it acts in every kind of rollout, and a resumed job continues bit for bit."""

import json
from pathlib import Path

import pytest

from tests.local_job import Lines, run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = DETERMINISTIC
model = { path = "model" }
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1, placement = "PLACEMENT" }
checkpoint = { interval = 2, export_hf = false }

[data]
type = "curriculum"
key = "level"
memory = 64
mean_samples = 3

[data.source]
type = "jsonl"
path = "rows.jsonl"
label_key = "label"
metadata_columns = ["level"]

[rollout]
batch_size = 8
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 8
KIND

[[rewards]]
type = "acme_level"

[trainer]
steps = 6
lr = 1e-3
dtype = "float32"
"""
REWARD = """
    from pydantic import BaseModel, ConfigDict

    class Params(BaseModel):
        model_config = ConfigDict(extra="forbid")

    class Level:
        Params = Params
        api_version = 1

        def __init__(self, params):
            pass

        def score(self, sample):
            return float(sample.prompt.row.metadata["level"] == "even" and sample.tokens[0] % 2)
"""
"""Rows of level "odd" never get a reward; about half of the samples of the others do."""


UNREPLACED = ("rollout.replace_dropped=false", 'filters=[{type="nonzero_std"}]')


def job(
    folder: Path, run: str, steps: int = 6, *changes: str, deterministic: bool = True, kind: str = ""
) -> Lines:
    if not (folder / "model").exists():
        make_tiny_model(folder / "model", "qwen3")
    rows = [
        {"prompt": f"say {number}", "label": "", "level": "odd" if number % 2 else "even"}
        for number in range(40)
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = SPEC.replace("DETERMINISTIC", str(deterministic).lower()).replace("KIND", kind)
    text = text.replace("PLACEMENT", "disaggregated" if "async" in kind else "colocated")
    text = text.replace("rows.jsonl", str(folder / "rows.jsonl"))
    (folder / "job.toml").write_text(text)
    return run_local(folder / "job.toml", folder / run, [f"trainer.steps={steps}", *changes])


@pytest.fixture(autouse=True)
def _reward(install_plugin) -> None:  # type: ignore[no-untyped-def]
    install_plugin("rewards", "acme_level", "acme_level:Level", REWARD)


def test_a_resumed_job_continues_bit_for_bit(tmp_path: Path) -> None:
    """Also with a budget of samples, and steps of as many groups as differ."""
    whole = job(tmp_path, "whole", 6, *UNREPLACED).curve
    first = job(tmp_path, "parts", 4, *UNREPLACED).curve
    rest = job(tmp_path, "parts", 6, *UNREPLACED).curve
    assert [line["step"] for line in rest] == [5, 6]
    assert [*first, *rest] == whole
    prompts = [
        (line["rollout/curriculum/even/prompts"], line["rollout/curriculum/odd/prompts"]) for line in whole
    ]
    assert all(even + odd == 8 for even, odd in prompts)
    assert sum(even for even, _ in prompts[3:]) > 18
    assert any("rollout/dropped/nonzero_std/all_0" in line for line in whole)
    assert whole[-1]["rollout/curriculum/even/signal"] > whole[-1]["rollout/curriculum/odd/signal"]


@pytest.mark.parametrize(
    "kind",
    [
        'mode = "sync"',
        'mode = "async"\nmax_staleness = 1',
        "partial = true\noversample = 10\nmax_staleness = 2",
    ],
    ids=["synchronous", "asynchronous", "partial"],
)
def test_it_acts_in_every_kind_of_rollout(kind: str, tmp_path: Path) -> None:
    lines = [
        *job(tmp_path, "run", 4, deterministic=False, kind=kind).lines,
        *job(tmp_path, "run", 6, deterministic=False, kind=kind).lines,
    ]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    even = sum(line["rollout/curriculum/even/prompts"] for line in lines[3:])
    odd = sum(line["rollout/curriculum/odd/prompts"] for line in lines[3:])
    assert even > 2 * odd
    assert lines[-1]["rollout/curriculum/odd/solve_rate"] < 0.3
