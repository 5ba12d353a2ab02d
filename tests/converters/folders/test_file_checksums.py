import pytest

from rlrun.converters.folders.checksums import (
    CHECKSUMS,
    DIFFERS,
    MISSING,
    checksum,
    checksums_text,
    find_problems,
    read_checksums,
)

FILES = {"driver.json": b"{}", "trainer/.metadata": b"table", "trainer/__0_0.distcp": b"weights"}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "trainer").mkdir()
    for name, data in FILES.items():
        (tmp_path / name).write_bytes(data)
    (tmp_path / CHECKSUMS).write_text(checksums_text(digests()))
    return tmp_path


def digests():
    return {name: checksum(data) for name, data in FILES.items()}


def test_what_was_written_is_read_back(folder):
    assert read_checksums(folder) == digests()
    assert find_problems(folder, digests()) == {}
    assert read_checksums(folder / "trainer") is None


def test_the_checksum_is_that_of_the_usual_program():
    """`printf abc | xxh128sum`"""
    assert checksum(b"abc") == "06b05ab6733a618578af5f94892f3950"


def test_every_flipped_bit_of_the_list_itself_is_noticed(folder):
    good = (folder / CHECKSUMS).read_bytes()
    for position in range(len(good)):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[position] ^= 1 << bit
            (folder / CHECKSUMS).write_bytes(damaged)
            with pytest.raises(ValueError, match="its last line does not match"):
                read_checksums(folder)


@pytest.mark.parametrize(
    "edit",
    {
        "empty": lambda text: "",
        "cut after a line": lambda text: text[: text.index("\n") + 1],
        "without the last line break": lambda text: text[:-1],
        "a byte more": lambda text: text + "\n",
        "a line lost": lambda text: text.partition("\n")[2],
        "other line breaks": lambda text: text.replace("\n", "\r\n"),
    }.items(),
    ids=lambda row: row[0],
)
def test_a_list_that_is_not_whole(folder, edit):
    path = folder / CHECKSUMS
    path.write_bytes(edit[1](path.read_text()).encode())
    with pytest.raises(ValueError, match="its last line does not match"):
        read_checksums(folder)


def test_what_is_wrong_with_files(folder):
    (folder / "driver.json").unlink()
    (folder / "trainer" / ".metadata").write_bytes(b"tablet")
    (folder / "trainer" / "__0_0.distcp").unlink()
    (folder / "trainer" / "__0_0.distcp").mkdir()
    assert find_problems(folder, digests()) == {
        "driver.json": MISSING,
        "trainer/.metadata": DIFFERS,
        "trainer/__0_0.distcp": "it cannot be read (it is a folder, not a regular file)",
    }
