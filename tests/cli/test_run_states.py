from pathlib import Path

import pytest

from rlrun.cli.run_states import checkpoint_at, find_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "first"
    for step in (4, 8, 12):
        (folder / "checkpoints" / f"step-{step}" / "trainer").mkdir(parents=True)
    (folder / "spec.lock.json").write_text("{}")
    return tmp_path / "runs"


@pytest.mark.parametrize(("text", "step"), [("first@4", 4), ("first@latest", 12)])
def test_a_run_at_a_step_is_its_checkpoint(runs: Path, text: str, step: int) -> None:
    assert checkpoint_at(text, runs) == runs / "first" / "checkpoints" / f"step-{step}"
    assert checkpoint_at(f"{runs}/{text}", Path("elsewhere")) == checkpoint_at(text, runs)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("first", "write RUN@STEP, such as first@40, RUN@latest or RUN@best"),
        ("first:4", "write RUN@STEP"),
        ("second@4", "there is no run second in"),
        ("first@5", "has checkpoints of these steps: 4, 8, 12"),
    ],
)
def test_what_is_not_there_is_named(runs: Path, text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        checkpoint_at(text, runs)


def test_a_run_is_found_by_name_and_by_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("runs/first", "runs/sweep/trial"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "state.json").write_text("{}")
    named = {
        "first": "runs/first",
        "runs/first": "runs/first",
        "./runs/first/": "runs/first",
        str(tmp_path / "runs/first"): "runs/first",
        "sweep/trial": "runs/sweep/trial",
    }
    for text, folder in named.items():
        assert find_run(Path("runs"), text).path.resolve() == tmp_path / folder, text
    with pytest.raises(ValueError, match="there is no run frist in runs; did you mean first"):
        find_run(Path("elsewhere"), "runs/frist")
    monkeypatch.chdir(tmp_path / "runs" / "first")
    for text in (".", "../first"):
        assert find_run(Path("runs"), text).path.resolve() == tmp_path / "runs/first"
