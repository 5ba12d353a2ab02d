"""Rows of CSV files, and files that are not CSV."""

from pathlib import Path

import pytest

from rlrun.plugins.data.csv import CsvParams
from rlrun.plugins.registry import PluginError, build, load
from rlrun.plugins.testing import check_data

SUMS = 'question,answer\n1 + 1?,2\n\n"two, and\n""three""?", 5\n4 + 4?,8\n'


def write(folder: Path, text: str | bytes, name: str = "sums.csv") -> str:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_rows_with_quotes_and_line_breaks(tmp_path: Path, mark: bytes, end: str) -> None:
    path = write(tmp_path, mark + SUMS.replace("\n", end).encode())
    rows = check_data("csv", {"path": path, "prompt_key": "question", "label_key": "answer"})
    assert [row.id for row in rows] == ["2", "4", "6"]
    assert [row.prompt for row in rows] == ["1 + 1?", f'two, and{end}"three"?', "4 + 4?"]
    assert [row.label for row in rows] == ["2", "5", "8"]


def test_slices_and_delimiters(tmp_path: Path) -> None:
    lines = "".join(f"p{number}\t{number}\n" for number in range(10))
    path = write(tmp_path, f"prompt\tlabel\n{lines}", "a.tsv")
    params = {"path": f"{path}@[-3:-1]", "delimiter": "\t"}
    assert [row.label for row in check_data("csv", params)] == ["7", "8"]


def test_a_preview_names_broken_rows(tmp_path: Path) -> None:
    params = CsvParams(path=write(tmp_path, "prompt,label\n1 + 1?,2\n2 + 2?\n"))
    good, broken = load("data", "csv").preview(params, 9)
    assert good.prompt == "1 + 1?"
    assert "row 3: it has 1 values, and the first line names 2 columns" in str(broken)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("prompt,label\n", r"has no rows \(the file has 0\)"),
        ("prompt;label\n1;2\n", 'set delimiter = ";"'),
        ("prompt\tlabel\n1\t2\n", r'set delimiter = "\\t"'),
        ("prompt,prompt\n1,2\n", "'prompt' is there twice"),
        ('prompt,label\n1,"2\n', r"sums.csv:2: not CSV \(unexpected end of data\)"),
        (b"prompt,label\n\xe4,2\n", r"sums.csv:2: not UTF-8 .*: convert it, for example: iconv"),
        (b"PAR1", 'use type = "parquet"'),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, text: str | bytes, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build("data", "csv", {"path": write(tmp_path, text)})


def test_json_lines_name_the_source_for_csv(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match='is a CSV file, and rlrun reads JSON lines: use type = "csv"'):
        build("data", "jsonl", {"path": write(tmp_path, SUMS)})
