"""The cache, whose contents are trusted: what others may write, or replace, is refused."""

import os
import stat
from pathlib import Path

import pytest

from rlrun.models import ownership
from rlrun.models.cache import cache_folder, check_private, private_folder


@pytest.fixture(autouse=True)
def umask(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path / "home" / "cache"))
    (tmp_path / "home").mkdir()


def test_a_new_cache_is_closed_whatever_the_umask() -> None:
    before = os.umask(0)
    try:
        folder = private_folder("operators")
    finally:
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, cache_folder())] == [0o700, 0o700]


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_file_that_others_may_write_is_refused(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "library.so"
    file.touch(0o600)
    check_private(file)
    file.chmod(mode)
    with pytest.raises(OSError, match="others may write"):
        check_private(file)


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    (tmp_path / "own").touch()
    owner = (tmp_path / "own").stat().st_uid
    if owner == 0:  # root's files are trusted
        os.chown(tmp_path / "own", 54321, -1)
    with pytest.raises(OSError, match="belongs to another user: set RLRUN_CACHE"):
        check_private(tmp_path / "own")


@pytest.mark.parametrize(
    ("mode", "own_group", "is_refused"),
    [
        pytest.param(0o755, False, False, id="only its owner writes"),
        pytest.param(0o777, True, True, id="everybody writes"),
        pytest.param(0o1777, False, False, id="sticky, as /tmp"),
        pytest.param(0o775, False, True, id="a group writes"),
        pytest.param(0o775, True, False, id="the group of the user alone writes"),
    ],
)
def test_a_folder_above_in_which_others_may_replace_the_cache_is_refused(
    mode: int, own_group: bool, is_refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ownership, "is_own_group", lambda gid: own_group)
    private_folder("view")
    (tmp_path / "home").chmod(mode)
    if is_refused:
        with pytest.raises(OSError, match="others may replace the cache"):
            private_folder("view")
    else:
        private_folder("view")


def test_a_link_to_a_cache_is_judged_by_both_of_its_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "cache")
    (tmp_path / "open" / "cache").mkdir(mode=0o700)
    monkeypatch.setenv("RLRUN_CACHE", str(tmp_path / "link"))
    with pytest.raises(OSError, match="others may replace the cache"):
        private_folder()
