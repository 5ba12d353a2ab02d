from pathlib import Path

import pytest

from rlrun.runner.checkpoints.folder import checkpoints_in, checkpoints_to_delete, clear_unfinished
from rlrun.runner.checkpoints.reading import read_driver
from rlrun.runner.checkpoints.saving import Checkpoints
from tests.runner.loop_fakes import Trainer

STRAYS = ["step-2.bak", "step-٣", "step-02", "step-best", "step-", "step-2 ", "step-1.tmp", "notes"]


def make(folder: Path, name: str) -> Path:
    """What a copy of a checkpoint looks like."""
    path = folder / name
    (path / "trainer").mkdir(parents=True)
    (path / "driver.json").write_text("{}")
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_strays_of_every_kind_are_passed_over(tmp_path: Path) -> None:
    for name in STRAYS:
        make(tmp_path, name)
    (tmp_path / "step-4").touch()  # a file
    (tmp_path / "step-5").mkdir()  # a folder with nothing of a checkpoint
    (tmp_path / "step-6").symlink_to(tmp_path / "nowhere")
    assert checkpoints_in(tmp_path) == {}
    own = make(tmp_path, "step-1")
    linked = tmp_path / "step-3"  # somebody moved a checkpoint to a larger disk
    linked.symlink_to(make(tmp_path / "larger", "step-3"))
    assert checkpoints_in(tmp_path) == {1: own, 3: linked}


@pytest.mark.parametrize("part", ["driver.json", "trainer"])
def test_a_checkpoint_that_lost_a_part_is_still_seen(tmp_path: Path, part: str) -> None:
    """Passing it over would lose the steps since the one before without a word."""
    path = make(tmp_path, "step-1")
    path.joinpath(part).rename(tmp_path / "elsewhere")
    assert checkpoints_in(tmp_path) == {1: path}


async def test_a_job_saves_and_deletes_its_own_among_strays(tmp_path: Path) -> None:
    for name in STRAYS:
        make(tmp_path, name)
    make(tmp_path, "step-99")  # of another run
    (tmp_path / "step-1").symlink_to(make(tmp_path / "larger", "step-1"))
    checkpoints = Checkpoints(tmp_path, keep=1)
    for step in (2, 3):
        await checkpoints.save(Trainer(), step, {"step": step})
    assert names(tmp_path) == {*STRAYS, "larger", "step-1", "step-3", "step-99"}
    assert read_driver(tmp_path / "step-3") == {"step": 3}


def test_superfluous_checkpoints(tmp_path: Path) -> None:
    own = [make(tmp_path, f"step-{step}") for step in (2, 4, 6, 8)]
    assert checkpoints_to_delete(tmp_path, 6, keep=2) == own[:1]
    assert checkpoints_to_delete(tmp_path, 6, keep=9) == []
    assert checkpoints_to_delete(tmp_path, 8, keep=1, best=4) == [own[0], own[2]]
    assert checkpoints_to_delete(tmp_path, 8, keep=1, best=8) == own[:3]


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
async def test_a_folder_with_the_next_checkpoints_name_is_moved_aside(tmp_path: Path, kind: str) -> None:
    stray, aside = tmp_path / "step-2", tmp_path / "step-2.aside-2"
    (tmp_path / "step-2.aside-1").mkdir()
    if kind == "file":
        stray.write_text("mine")
    elif kind == "folder":
        stray.mkdir()
        (stray / "notes").write_text("mine")
    else:
        stray.symlink_to(tmp_path / "nowhere")
    await Checkpoints(tmp_path, keep=1).save(Trainer(), 2, {"step": 2})
    assert read_driver(stray) == {"step": 2}
    assert aside.is_symlink() if kind == "link" else aside.exists()


def test_only_leftovers_of_a_crash_are_cleared_away(tmp_path: Path) -> None:
    elsewhere = make(tmp_path, "elsewhere")
    for name in (".step-2.tmp", ".step-3.old", ".step-2.bak.tmp", ".notes.tmp", ".step-02.old"):
        make(tmp_path, name)
    (tmp_path / ".step-4.tmp").symlink_to(elsewhere)
    (tmp_path / ".step-5.tmp").touch()
    clear_unfinished(tmp_path)
    assert names(tmp_path) == {"elsewhere", ".step-2.bak.tmp", ".notes.tmp", ".step-02.old"}
    assert names(elsewhere) == {"trainer", "driver.json"}
