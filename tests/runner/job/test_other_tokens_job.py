"""Jobs whose teacher has a tokenizer of its own."""

import json
from pathlib import Path

import pytest

from tests.local_job import Lines, run_local
from tests.merging_tokenizers import make_merging_tokenizer
from tests.tiny_models import TEMPLATE, make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl" }
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1 }
checkpoint = { interval = 3, export_hf = false }

[rollout]
batch_size = 4
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 16

[trainer]
lr = 3e-3
dtype = "float32"
"""
BYTES = 259
"""The tokens of the tiny tokenizer that are bytes or special: a text has one spelling in them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    make_tiny_model(folder / "model", vocab=BYTES)
    make_tiny_model(folder / "same", "llama", seed=3, vocab=BYTES)
    make_tiny_model(folder / "other", "llama", seed=3, vocab=300)
    template = TEMPLATE.replace("<|im_start|>", "<s>").replace("<|im_end|>", "</s>")
    make_merging_tokenizer(folder / "other", ["say", " 1", "assistant"], "</s>", "<s>", template=template)
    rows = [{"prompt": f"say {number}"} for number in range(16)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "job.toml").write_text(SPEC)
    return folder


def run(job: Path, out: Path, teacher: str, *overrides: str) -> Lines:
    """Runs two steps unless `overrides` say otherwise; `teacher`: its folder and further keys."""
    table = f'teacher={{path="{job}/{teacher}}}'
    return run_local(job / "job.toml", out, ["trainer.steps=2", table, *overrides])


SAME, OTHER, OWN = 'same"', 'other", tokenizer="own"', 'same", tokenizer="own"'


@pytest.mark.parametrize("algorithm", ["gkd", "on_policy_distillation"])
def test_a_tokenizer_of_the_same_tokens_is_plain_distillation_bit_for_bit(
    folder: Path, tmp_path: Path, algorithm: str
) -> None:
    plain = run(folder, tmp_path / "plain", SAME, f"algorithm.type={algorithm}")
    own = run(folder, tmp_path / "own", OWN, f"algorithm.type={algorithm}")
    for ours, theirs in zip(own.curve, plain.curve, strict=True):
        assert ours.pop("rollout/compared_frac") == 1.0
        assert ours == theirs


def test_the_student_approaches_a_teacher_with_other_tokens_and_resumes_bit_for_bit(
    folder: Path, tmp_path: Path
) -> None:
    whole = run(folder, tmp_path / "whole", OTHER, "algorithm.type=gkd", "trainer.steps=6")
    run(folder, tmp_path / "parts", OTHER, "algorithm.type=gkd", "trainer.steps=3")
    rest = run(folder, tmp_path / "parts", OTHER, "algorithm.type=gkd", "trainer.steps=6")
    assert rest.curve == whole.curve[3:]
    divergences = [line["train/divergence"] for line in whole.lines]
    assert 0 < divergences[-1] < 0.9 * divergences[0], divergences
    assert all(0 < line["rollout/compared_frac"] <= 1 for line in whole.lines)


def test_the_sampled_tokens_of_both_are_compared(folder: Path, tmp_path: Path) -> None:
    lines = run(folder, tmp_path, OTHER, "algorithm.type=on_policy_distillation").lines
    assert all(0 < line["rollout/compared_frac"] <= 1 and line["train/grad_norm"] > 0 for line in lines)
