import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.runner.host.atomic_files import is_unfinished, write_text

WRITE = """
import sys
from pathlib import Path
from rlrun.runner.host.atomic_files import write_text
for _ in range(200):
    write_text(Path(sys.argv[1]), sys.argv[2] * 10_000)
"""


def test_a_reader_sees_one_whole_text_while_several_processes_write(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("a" * 10_000)
    writers = [subprocess.Popen([sys.executable, "-c", WRITE, str(path), letter]) for letter in "abc"]
    while any(writer.poll() is None for writer in writers):
        text = path.read_text()
        assert text in {letter * 10_000 for letter in "abc"}
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_write_that_fails_leaves_the_old_text_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800")
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_temporary_files_are_known_by_their_names(tmp_path: Path) -> None:
    names = {
        ".state.json.a1_b2c3d.tmp": True,
        ".tmp": False,
        ".a.tmp": False,
        "state.json.a1_b2c3d.tmp": False,
    }
    for name in names:
        (tmp_path / name).touch()
    assert {name: is_unfinished(tmp_path / name) for name in names} == names
