"""What `rlrun eval` evaluates, and on what."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlrun.cli.evaluated_model import Rows, find_model, sources_of
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.sections.job import Spec
from tests.cli.cli_outcome import Command

TINY = Path(__file__).parents[1] / "specs" / "tiny"
JOB = """
name = "sums"
[model]
path = "model"
[data]
path = "rows.jsonl"
[rollout]
max_response_tokens = 16
[[rewards]]
type = "exact_match"
[trainer]
steps = 3
[trainer.lora]
rank = 4
[[eval.datasets]]
name = "held-out"
path = "rows.jsonl"
"""
GIVEN: dict[str, Any] = {
    "model": {"path": "/elsewhere", "random_init": True, "chat_template_args": {"thinking": False}},
    "data": {"path": "rows.jsonl"},
    "rollout": {"max_response_tokens": 16},
    "rewards": [{"type": "exact_match"}],
    "trainer": {"steps": 3, "lora": {"rank": 4}},
    "checkpoint": {"interval": 1},
    "debug": {"save_rollouts": True},
    "eval": {"datasets": [{"name": "held-out", "path": "rows.jsonl"}]},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a spec, a model, and runs with and without an exported model."""
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{number} + 1?", "label": str(number + 1)} for number in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "model").symlink_to(TINY)
    for name in ("trained", "stopped"):
        run = tmp_path / "runs" / name
        run.mkdir(parents=True)
        lock = {"given": GIVEN, "spec": GIVEN, "model": {"sha256": "0"}}
        (run / "spec.lock.json").write_text(json.dumps(lock))
    (tmp_path / "runs" / "trained" / "model").symlink_to(TINY)
    return tmp_path


def spec_of(target: str, spec: str | None = None, rows: Rows | None = None) -> Spec:
    model = find_model(target, Path("runs"), has_rows=spec is not None or rows is not None)
    sources = sources_of(target, model, spec, rows, Path("model"))
    settings = ['debug.mode="eval"', "rollout.max_response_tokens=16"]
    return load_checked_spec(sources, settings).spec


@pytest.mark.parametrize(
    ("target", "spec", "path"),
    [
        ("job.toml", None, "model"),
        ("trained", None, "runs/trained/model"),
        ("runs/trained", None, "runs/trained/model"),
        ("trained@4", None, "model"),  # a checkpoint, converted
        ("model", "job.toml", "model"),
        ("stopped@latest", "job.toml", "model"),
        ("org/name", "job.toml", "org/name"),
    ],
)
def test_the_model_of_a_target(folder: Path, target: str, spec: str | None, path: str) -> None:
    found = spec_of(target, spec)
    assert found.model.path == (path if path == "org/name" else str(folder / path))
    assert [dataset.name for dataset in found.eval.datasets] == ["held-out"]


def test_the_evaluation_of_a_run_takes_over_what_is_not_about_training(folder: Path) -> None:
    found = spec_of("trained")
    assert not found.model.random_init
    assert found.model.chat_template_args == {"thinking": False}
    assert found.trainer.lora is None  # merged into the exported model
    assert not found.debug.save_rollouts
    assert found.checkpoint.interval is None


def test_rows_of_a_file_are_all_evaluated_on(folder: Path) -> None:
    found = spec_of("model", rows=Rows(Path("rows.jsonl"), "exact_match", samples=4))
    [dataset] = found.eval.datasets
    assert (dataset.name, dataset.samples_per_prompt) == ("rows", 4)
    assert dataset.params["path"] == str(folder / "rows.jsonl")
    assert [reward.type for reward in found.rewards] == ["exact_match"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("model",),
            "model is a model: say what to evaluate it on, with --spec SPEC, --data FILE or --benchmark SET",
        ),
        (("stopped",), "has no exported model, which a run writes at its end: runs/stopped@latest"),
        (("absent@3",), "there is no run absent in runs"),
        (("model", "--samples", "4"), "apply to the rows of --data"),
        (("model", "--data", "rows.jsonl", "--spec", "job.toml"), "give only one of them"),
        (("job.toml", "--resume", "--new"), "give only one of them"),
        (("job.toml", "--set", "eval.datasets=[]"), "there is nothing to evaluate on"),
        (("http://127.0.0.1:1/v1",), "does not say which models it has"),
        (("http://127.0.0.1:1/v1", "--served-model", "m"), "is a server: say what to evaluate on"),
        (("http://127.0.0.1:1/v1", "--api-key-env", "NO_KEY"), "variable NO_KEY is not set"),
        (("job.toml", "--served-model", "m"), "describe a server: give its address as TARGET"),
    ],
)
def test_mistakes(folder: Path, rlrun: Command, arguments: tuple[str, ...], message: str) -> None:
    outcome = rlrun("eval", *arguments)
    assert outcome.code == 2
    assert message in outcome.err
