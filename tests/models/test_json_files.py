from pathlib import Path

import pytest

from rlrun.models.json_files import read_json_object


def test_a_table(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes('{"a": "é"}'.encode())
    assert read_json_object(tmp_path / "config.json") == {"a": "é"}
    with pytest.raises(FileNotFoundError):
        read_json_object(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"a": 1,\n "b" 2}', r"config\.json is not valid JSON: Expecting ':' delimiter: line 2 column 6"),
        (b"", r"config\.json is not valid JSON"),
        (b'{"a": "\xff"}', r"config\.json is not valid JSON: 'utf-8' codec"),
        (b"[" * 100_000, r"config\.json is not valid JSON"),
        (b"\0" * 512, r"config\.json is not valid JSON"),
        (b"[1]", r"config\.json does not hold a JSON object; copy the file again"),
    ],
)
def test_a_broken_file_is_named(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(ValueError, match=message):
        read_json_object(tmp_path / "config.json")
