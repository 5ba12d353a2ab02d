"""Jobs whose teacher reads a prompt of its own."""

import json
from pathlib import Path

import pytest

from tests.local_job import Lines, run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl", metadata_columns = ["hint"] }
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1 }
checkpoint = { interval = 2, export_hf = false }

[rollout]
batch_size = 4
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 12

[trainer]
lr = 3e-3
dtype = "float32"
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    make_tiny_model(folder / "model")
    make_tiny_model(folder / "teacher", "llama", seed=3)
    rows = [{"prompt": f"say {number}", "label": "?", "hint": f"no, {number * 7}"} for number in range(16)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "job.toml").write_text(SPEC)
    return folder


def run(folder: Path, out: Path, teacher: str, *overrides: str, steps: int = 2) -> Lines:
    settings = ["algorithm.type=gkd", f"trainer.steps={steps}", f"teacher={{{teacher}}}", *overrides]
    return run_local(folder / "job.toml", out, settings)


@pytest.mark.parametrize(
    ("teacher", "algorithm"),
    [('path="teacher"', "on_policy_distillation"), ('weights="initial"', "gkd")],
)
def test_the_policy_s_own_prompt_is_plain_distillation_bit_for_bit(
    folder: Path, tmp_path: Path, teacher: str, algorithm: str
) -> None:
    teacher = teacher.replace('"teacher"', f'"{folder}/teacher"')
    plain = run(folder, tmp_path / "plain", teacher, f"algorithm.type={algorithm}")
    own = run(folder, tmp_path / "own", f'{teacher}, prompt="{{prompt}}"', f"algorithm.type={algorithm}")
    for ours, theirs in zip(own.curve, plain.curve, strict=True):
        assert ours.pop("rollout/distilled_frac") == 1.0
        assert ours == theirs


def test_a_teacher_that_averages_the_policy_resumes_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    teacher = 'weights="average", update_rate=0.3, prompt="{hint} {prompt}"'
    whole = run(folder, tmp_path / "whole", teacher, steps=4)
    run(folder, tmp_path / "parts", teacher, steps=2)
    rest = run(folder, tmp_path / "parts", teacher, steps=4)
    assert rest.curve == whole.curve[2:]
    assert all(line["train/grad_norm"] > 0 for line in whole.lines)


def test_samples_without_a_solution_teach_nothing(folder: Path, tmp_path: Path) -> None:
    rewards = 'rewards=[{type="length", max_tokens=12, buffer=12}]'
    told = 'weights="current", prompt="{solution} {prompt}"'
    some = run(folder, tmp_path / "some", f"{told}, success_reward=-0.95", rewards)
    none = run(folder, tmp_path / "none", f"{told}, success_reward=2.0", rewards)
    last = some.lines[-1]
    assert 0 < last["rollout/distilled_frac"] < 1 and last["train/loss"] > 0 and last["train/grad_norm"] > 0
    assert all(line["rollout/distilled_frac"] == line["train/grad_norm"] == 0 for line in none.lines)


def test_asynchronous_samples_are_scored_after_the_teacher_s_prompt(folder: Path, tmp_path: Path) -> None:
    options = ["deterministic=false", "rollout.mode=async", "cluster.placement=disaggregated"]
    teacher = 'weights="current", prompt="{hint} {prompt}"'
    lines = run(folder, tmp_path, teacher, *options, "algorithm.type=on_policy_distillation", steps=4).lines
    assert all(line["rollout/distilled_frac"] == 1 and line["train/grad_norm"] > 0 for line in lines)
    assert max(line["rollout/staleness/max"] for line in lines) > 0
    # the distance is that of the policy of this step, whatever weights made the sample
    assert all(line["perf/log_prob_time"] > 0 for line in lines)
