"""Jobs whose engine gets weights every second step, and jobs that begin with another run's checkpoint."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.local_job import Lines, run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl" }
cluster = { threads = 1 }
checkpoint = { interval = 3, keep = "all", export_interval = 3 }

[rollout]
batch_size = 8
samples_per_prompt = 4
max_response_tokens = 16
weight_update_interval = 2

[[rewards]]
type = "length"
max_tokens = 16
buffer = 16

[trainer]
steps = 6
lr = 3e-3
dtype = "float32"

[engine]
dtype = "float32"
"""


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    make_tiny_model(folder / "model", scale=0.05)
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(64)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "job.toml").write_text(SPEC)
    return folder / "job.toml"


@pytest.fixture(scope="module")
def whole(spec: Path) -> tuple[Path, Lines]:
    return spec.parent / "whole", run_local(spec, spec.parent / "whole")


def test_staleness_is_counted_and_is_what_the_log_probs_differ_by(whole: tuple[Path, Lines]) -> None:
    # the engine gets the weights of steps 2, 3 (a checkpoint), 4 and 6
    lines = whole[1].lines
    assert [line["rollout/staleness/max"] for line in lines] == [0, 1, 0, 0, 0, 1]
    gaps = [line["train/train_rollout_logprob_abs_diff"] for line in lines]
    stale = [gaps[1], gaps[5]]
    assert max(gap for gap in gaps if gap not in stale) < 1e-4 < min(stale)


def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(spec: Path, whole: tuple[Path, Lines]) -> None:
    folder, lines = whole
    parts = spec.parent / "parts"
    shutil.copytree(folder / "checkpoints" / "step-3", parts / "checkpoints" / "step-3")
    assert run_local(spec, parts, port=2).curve == lines.curve[3:]


def test_models_are_written_while_the_run_trains(whole: tuple[Path, Lines]) -> None:
    folder, _ = whole
    assert sorted(path.name for path in (folder / "models").iterdir()) == ["step-3", "step-6"]
    middle, last, final = (
        load_file(folder / path / "model.safetensors") for path in ("models/step-3", "models/step-6", "model")
    )
    assert all((last[name] == final[name]).all() for name in final)
    assert any((middle[name] != final[name]).any() for name in final)


def test_a_run_begins_with_the_weights_of_another_one(spec: Path, whole: tuple[Path, Lines]) -> None:
    """The tiny model is in float32, so that its export has the weights of the checkpoint."""
    folder, _ = whole
    start = f'checkpoint.start_from="{folder}/checkpoints/step-3"'
    changes = {
        "exported": [f'model.path="{folder}/models/step-3"'],
        "weights": [start, "checkpoint.start_optimizer=false"],
        "both": [start],
    }
    lines = {
        name: run_local(spec, spec.parent / name, ["trainer.steps=2", *settings], port=3 + number).curve
        for number, (name, settings) in enumerate(changes.items())
    }
    assert lines["weights"] == lines["exported"]
    assert lines["both"] != lines["exported"]  # Adam's moments of the other run move the weights
    rollouts = [{k: v for k, v in lines[name][0].items() if k.startswith("rollout")} for name in lines]
    assert rollouts[0] == rollouts[1] == rollouts[2]
