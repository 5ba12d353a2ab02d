"""Cures for mistakes of newcomers: they name what was meant, and nothing that misleads."""

from pathlib import Path

import pytest

from rlrun.cli.arguments import load
from rlrun.specs.problems.findings import Problem, SpecError

BASE = str(Path(__file__).parent / "base.toml")


def problem_of(*overrides: str, spec: str = BASE) -> Problem:
    """The one problem of the base spec with these overrides."""
    with pytest.raises(SpecError) as caught:
        load([spec], list(overrides))
    [problem] = caught.value.problems
    return problem


@pytest.mark.parametrize(
    ("override", "cure"),
    [
        ("trainer.beta=0.1", "did you mean `algorithm.kl.in_loss.coef`?"),
        ("algorithm.beta=0.1", "did you mean `algorithm.kl.in_loss.coef`?"),
        ("trainer.beta1=0.9", "did you mean `betas`?"),
        ("trainer.lora_rank=8", "did you mean `trainer.lora.rank`?"),
        ("trainer.peft=true", "by a table [trainer.lora]"),
    ],
)
def test_a_cure_names_what_was_meant(override: str, cure: str) -> None:
    assert cure in str(problem_of(override).cure)


def test_a_value_after_a_space_is_not_a_file() -> None:
    with pytest.raises(SpecError) as caught:
        load([BASE, "0.1"], ["trainer.lr"])
    [problem] = caught.value.problems
    assert (problem.message, problem.cure) == ("'trainer.lr' has no value", "write --set trainer.lr=0.1")


@pytest.mark.parametrize(
    ("name", "cure"),
    [("job.py", "rlrun import trl"), ("job.sh", "rlrun import slime"), ("job.yaml", "rlrun import")],
)
def test_a_file_of_another_kind_is_not_a_spec(name: str, cure: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x = 1\n")
    problem = problem_of(spec=str(tmp_path / name))
    assert problem.message == f"a spec is a TOML file, not *{Path(name).suffix}"
    assert cure in str(problem.cure)


def test_rows_are_not_a_spec(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1?"}\n')
    problem = problem_of(spec=str(rows))
    assert (problem.message, "rlrun init --data FILE" in str(problem.cure)) == (
        "this is JSON, not a spec",
        True,
    )


@pytest.mark.parametrize(
    ("files", "path", "message"),
    [
        (["model/config.json"], "", "the folder of a run, whose trained model is {}/model"),
        (["checkpoints/step-2/driver.json"], "", "a run without an exported model"),
        (
            ["driver.json", "trainer/.metadata"],
            "",
            "a checkpoint: export it with rlrun convert dcp-to-hf {}/trainer DST",
        ),
        (
            ["driver.json", "trainer/.metadata"],
            "trainer",
            "a checkpoint: export it with rlrun convert dcp-to-hf {}/trainer",
        ),
        (["notes.txt"], "", "it has no config.json"),
    ],
)
def test_what_is_not_a_model_says_where_one_is(
    tmp_path: Path, files: list[str], path: str, message: str
) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    problem = problem_of(f"model.path={(tmp_path / path).as_posix()}")
    assert message.format(tmp_path) in problem.message
