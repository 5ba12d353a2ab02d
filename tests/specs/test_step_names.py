from pathlib import Path

import pytest

from rlrun.specs.step_names import ROLLOUTS, list_step_paths, step_name, step_of


@pytest.mark.parametrize("step", [0, 1, 10, 123456])
@pytest.mark.parametrize("suffix", ["", ROLLOUTS])
def test_a_name_gives_its_step_back(step: int, suffix: str) -> None:
    assert step_of(step_name(step, suffix), suffix) == step


@pytest.mark.parametrize(
    "name",
    [
        "step-2.bak",
        "step-2.old",
        "step-2 ",
        " step-2",
        "step-2\n",
        "step-02",
        "step-+2",
        "step--2",
        "step-2_0",
        "step-٣",  # another script's three: \d and int() take it
        "step-²",
        "step-",
        "step-2~",
        "step-2 (copy)",
        "Step-2",
        "my-step-2",
        ".step-2.tmp",
        "step-best",
        "step-2.jsonl.zst",
    ],
)
def test_names_that_people_gave_belong_to_no_step(name: str) -> None:
    assert step_of(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "step-2",
        "step-2.jsonl",
        "step-2.bak.jsonl.zst",
        "step-2.jsonl.zst.bak",
        "step-x.jsonl.zst",
        "step-02.jsonl.zst",
    ],
)
def test_names_beside_the_rollouts_belong_to_no_step(name: str) -> None:
    assert step_of(name, ROLLOUTS) is None


def test_what_a_folder_holds_for_each_step(tmp_path: Path) -> None:
    for name in ("step-10", "step-2", "step-2.bak", "step-02", "notes.txt"):
        (tmp_path / name).touch()
    assert list_step_paths(tmp_path) == {2: tmp_path / "step-2", 10: tmp_path / "step-10"}
    assert list_step_paths(tmp_path / "missing") == {}
