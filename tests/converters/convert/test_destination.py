"""A folder is whole or not there: killed at any moment, on a full disk, twice at once."""

import errno
import fcntl
import shutil

import pytest
import torch

from rlrun.converters.convert import copying, destination
from tests.converters.conversions import EFFORT, convert, ignore, read_hf, same
from tests.converters.killed import (
    SHARDS,
    plan,
    run_and_die,
    write_and_die_after,
    write_and_die_at_the_end,
    write_small_files,
)
from tests.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("models") / "hf")


@pytest.mark.parametrize("calls", [1, 2, 5, 11, 17, 22])
@pytest.mark.parametrize("options", [{}, {"dtype": torch.bfloat16}], ids=["copied", "cast"])
def test_a_second_run_completes_what_a_killed_one_began(calls, options, source, tmp_path):
    out = tmp_path / "out"
    run_and_die(write_and_die_after, calls, source, out, options)
    assert not out.exists()
    convert(source, "hf", out, **SHARDS, **options)
    expected = {name: tensor.to(options.get("dtype")) for name, tensor in read_hf(source).items()}
    assert same(expected, read_hf(out))
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("moment", ["before the folder has its name", "after"])
def test_killed_at_the_end(moment, source, tmp_path):
    out = tmp_path / "out"
    run_and_die(write_and_die_at_the_end, moment, source, out)
    if moment == "after":
        with pytest.raises(ValueError, match="already exists"):
            convert(source, "hf", out, **SHARDS)
    else:
        convert(source, "hf", out, **SHARDS)
    assert same(read_hf(source), read_hf(out))


def test_what_is_complete_is_not_written_again(source, tmp_path):
    out = tmp_path / "out"
    run_and_die(write_and_die_after, 20, source, out, {})
    complete = {path: path.stat().st_mtime_ns for path in (tmp_path / ".out.partial").glob("*.safetensors")}
    assert complete
    conversion = plan(source)
    conversion.write(out, EFFORT, ignore, None)
    assert conversion.resumed >= sum((out / path.name).stat().st_size for path in complete)
    assert all((out / path.name).stat().st_mtime_ns == time for path, time in complete.items())


def test_another_conversion_does_not_go_on_from_it(source, tmp_path):
    out = tmp_path / "out"
    run_and_die(write_and_die_after, 20, source, out, {})
    convert(source, "hf", out, dtype=torch.bfloat16, **SHARDS)
    assert same({name: tensor.bfloat16() for name, tensor in read_hf(source).items()}, read_hf(out))


def test_nothing_is_overwritten(source, tmp_path):
    with pytest.raises(ValueError, match=r"already exists and is not overwritten"):
        convert(source, "hf", source)
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match="already exists"):
        convert(source, "hf", tmp_path / "file")
    (tmp_path / "empty").mkdir()
    convert(source, "hf", tmp_path / "empty")


def test_two_at_once_are_refused(source, tmp_path):
    with (tmp_path / ".out.partial.json").open("w") as claim:
        fcntl.flock(claim, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another conversion is writing"):
            convert(source, "hf", tmp_path / "out")


@pytest.mark.parametrize("claim", [None, "", "a note of mine"])
def test_a_folder_that_no_conversion_made_is_left_alone(claim, source, tmp_path):
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "thesis").write_text("mine")
    if claim is not None:
        (tmp_path / ".out.partial.json").write_text(claim)
    with pytest.raises(ValueError, match=r"\.out\.partial was not made by rlrun convert"):
        convert(source, "hf", tmp_path / "out")
    assert (tmp_path / ".out.partial" / "thesis").read_text() == "mine"


def test_links_in_the_place_of_what_is_written_are_not_followed(source, tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / ".out.partial.json").symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match=r"out\.partial\.json"):
        convert(source, "hf", tmp_path / "out")
    assert (tmp_path / "mine").read_text() == "mine"
    (tmp_path / ".out.partial.json").unlink()
    (tmp_path / "folder").mkdir()
    (tmp_path / ".out.partial").symlink_to(tmp_path / "folder")
    with pytest.raises(ValueError, match="was not made by rlrun convert"):
        convert(source, "hf", tmp_path / "out")
    assert list((tmp_path / "folder").iterdir()) == []


def test_a_disk_that_has_too_little_room_is_noticed_before(source, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(destination.shutil, "disk_usage", lambda _: usage._replace(free=100_000))
    with pytest.raises(ValueError, match=r"has 0.00 GB free, out needs 0.00 GB more; make room"):
        convert(source, "hf", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("options", [{}, {"dtype": torch.bfloat16}], ids=["copied", "cast"])
def test_a_disk_that_is_full_meanwhile(options, source, tmp_path):
    out = tmp_path / "out"
    run_and_die(write_small_files, source, out, options)
    convert(source, "hf", out, **SHARDS, **options)


def test_errors_of_a_disk_name_the_file(source, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(copying.os, "sendfile", full)
    with pytest.raises(ValueError, match=r"partial/model.*: No space left on device; .*same command again"):
        convert(source, "hf", tmp_path / "out", **SHARDS)


def test_reading_back_finds_what_the_disk_changed(source, tmp_path, monkeypatch):
    complete = copying._complete

    def spoil(path, file):
        complete(path, file)
        if file.tensors:
            whole = path.with_name(file.name)
            data = bytearray(whole.read_bytes())
            data[-1] ^= 1
            whole.write_bytes(data)

    monkeypatch.setattr(copying, "_complete", spoil)
    with pytest.raises(ValueError, match="is not what was written: check the disk"):
        convert(source, "hf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
