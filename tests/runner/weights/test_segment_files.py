from pathlib import Path

from rlrun.runner.weights.segment_files import new_name, remove_of


def test_only_segments_of_the_given_processes_are_removed(tmp_path: Path) -> None:
    names = ["rlrun-run-1-4026.77-0", "rlrun-a-77-4026.78-1", "torch_77_123_0", "torch_78_77_0", "other-77-0"]
    for name in names:
        (tmp_path / name).touch()
    remove_of([77], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "rlrun-a-77-4026.78-1", "torch_78_77_0", "other-77-0",
    }  # fmt: skip


def test_names_as_they_are_made_are_recognised(tmp_path: Path) -> None:
    name = new_name("run-8")
    pid = int(name.partition(".")[2].partition("-")[0])
    (tmp_path / name).touch()
    remove_of([pid], tmp_path)
    assert not list(tmp_path.iterdir())
