"""Files that rlrun did not write are opened only if they are regular files."""

import os
import socket
from pathlib import Path

import pytest

from rlrun.models.foreign_files import NotRegular, open_regular, read_bytes


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def make_socket(path: Path) -> None:
    socket.socket(socket.AF_UNIX).bind(str(path))


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (make_pipe, "a pipe"),
        (make_link_to_device, "a device"),
        (make_socket, "a socket"),
        (Path.mkdir, "a folder"),
    ],
)
def test_only_regular_files_are_opened(make, kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the path of a socket has at most 108 characters
    make(Path("it"))
    with pytest.raises(NotRegular, match=f"^it cannot be read: it is {kind}, not a regular file$"):
        open_regular(Path("it"))


def test_a_link_to_a_file_and_a_file_of_an_open_folder_are_read(tmp_path):
    (tmp_path / "file").write_bytes(b"1234")
    (tmp_path / "link").symlink_to("file")
    assert open_regular(tmp_path / "link").read() == b"1234"
    folder = os.open(tmp_path, os.O_RDONLY)
    assert read_bytes(Path("file"), 9, folder=folder) == b"1234"
    os.close(folder)


def test_a_file_is_read_up_to_its_bound(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert read_bytes(path, 4) == b"1234"
    with pytest.raises(ValueError, match="more than 3 bytes"):
        read_bytes(path, 3)
