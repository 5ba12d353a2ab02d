"""Rows from Parquet files, from the datasets library, and from mixtures of sources."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rlrun.plugins.registry import PluginError, build
from rlrun.plugins.testing import check_data

ROWS = [{"prompt": f"p{number}", "label": number, "image": f"{number}.png"} for number in range(10)]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


def jsonl(folder: Path, rows: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
    path = folder / name
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(path)


def parquet(folder: Path, rows: list[dict[str, Any]], name: str = "rows.parquet") -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / name, row_group_size=3)
    return str(folder / name)


def labels(name: str, params: dict[str, Any]) -> list[Any]:
    return [row.label for row in check_data(name, params)]


def test_parquet_rows_over_row_groups_and_files(tmp_path: Path) -> None:
    path = parquet(tmp_path, ROWS)
    assert labels("parquet", {"path": path}) == list(range(10))
    assert labels("parquet", {"path": f"{path}@[2:-5]"}) == [2, 3, 4]
    parquet(tmp_path, ROWS[:2], "a.parquet")
    assert labels("parquet", {"path": str(tmp_path)}) == [0, 1, *range(10)]


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no.parquet", "there is no Parquet file"),
        ("text.parquet", "cannot be read as Parquet"),
        ("rows.parquet@[20:]", r"has no rows \(the file has 10\)"),
        ("rows.parquet@[a:]", "ends in an invalid slice"),
    ],
)
def test_parquet_files_that_cannot_be_used(tmp_path: Path, path: str, message: str) -> None:
    parquet(tmp_path, ROWS)
    (tmp_path / "text.parquet").write_text("text")
    with pytest.raises(PluginError, match=message):
        build("data", "parquet", {"path": f"{tmp_path}/{path}"})


def test_a_missing_column_is_named_with_its_row(tmp_path: Path) -> None:
    source = build("data", "parquet", {"path": parquet(tmp_path, ROWS), "prompt_key": "question"})
    with pytest.raises(
        ValueError, match=r"rows.parquet, row 0: the row has no 'question'; it has .*'prompt', 'label'"
    ):
        source[0]


def test_system_prompt_tools_and_columns(tmp_path: Path) -> None:
    rows = [{**ROWS[0], "tools": json.dumps([TOOL])}]
    params = {"system_prompt": "Be brief.", "tools_key": "tools", "metadata_columns": ["image"]}
    (row,) = check_data("jsonl", {"path": jsonl(tmp_path, rows), **params})
    assert row.prompt == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "p0"}]
    assert row.metadata == {"image": "0.png", "tools": [TOOL]}


def test_a_row_keeps_its_own_system_message(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be long."}, {"role": "user", "content": "2?"}]
    path = jsonl(tmp_path, [{"prompt": chat, "label": 2}])
    (row,) = check_data("jsonl", {"path": path, "system_prompt": "Be brief."})
    assert row.prompt == chat


@pytest.mark.parametrize(("name", "write"), [("jsonl", jsonl), ("parquet", parquet)])
def test_only_the_first_row_of_a_prompt(tmp_path: Path, name: str, write: Any) -> None:
    rows = [{"prompt": prompt, "label": number} for number, prompt in enumerate("abacb")]
    assert labels(name, {"path": write(tmp_path, rows), "unique": True}) == [0, 1, 3]


def test_datasets_from_a_folder_and_from_files(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    saved = tmp_path / "saved"
    datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)}).save_to_disk(str(saved))
    assert labels("hf", {"path": str(saved), "split": "test@[:3]"}) == [0, 1, 2]
    with pytest.raises(PluginError, match=r"saved \(train\) cannot be loaded: KeyError"):
        build("data", "hf", {"path": str(saved)})


def test_images_are_carried_as_they_are_stored(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    stored = {"bytes": b"no need to be an image \xff", "path": None}
    rows = [{"prompt": "What is this?", "label": "a cat", "image": stored}]
    params = {"metadata_columns": ["image"]}
    (row,) = check_data("parquet", {"path": parquet(tmp_path, rows), **params})
    assert row.metadata == {"image": stored}
    table = datasets.Dataset.from_list(rows).cast_column("image", datasets.Image())
    table.save_to_disk(str(tmp_path / "saved"))
    (row,) = check_data("hf", {"path": str(tmp_path / "saved"), **params})
    assert row.metadata == {"image": stored}


def test_a_mixture_has_each_source_by_its_weight(tmp_path: Path) -> None:
    many, few = jsonl(tmp_path, ROWS), jsonl(tmp_path, ROWS[:2], "few.jsonl")
    sources = [
        {"type": "jsonl", "path": many, "weight": 0.5},
        {"type": "jsonl", "path": few, "weight": 2, "prompt_key": "image"},
    ]
    rows = check_data("mixture", {"sources": sources})
    assert [row.metadata["source"] for row in rows] == [0] * 5 + [1] * 4
    assert [row.prompt for row in rows[5:]] == ["0.png", "1.png"] * 2
    assert [row.id for row in rows[5:]] == ["1:1", "1:2", "1:1#2", "1:2#2"]
    other = check_data("mixture", {"sources": sources, "seed": 1})
    assert {row.id for row in other[:5]} != {row.id for row in rows[:5]}


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"type": "jsnl", "path": "x"}, r"source 0 \(jsnl\): .*did you mean 'jsonl'"),
        ({"type": "jsonl", "path": "x"}, r"source 0 \(jsonl\): .*there is no file x"),
        ({"type": "jsonl", "pth": "x"}, r"source 0 \(jsonl\): .*pth: unknown key"),
        ({"type": "jsonl", "weight": 0}, "greater than 0"),
    ],
)
def test_a_source_that_cannot_be_used_is_named(source: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build("data", "mixture", {"sources": [source]})


def test_a_broken_row_names_its_source(tmp_path: Path) -> None:
    source = {"type": "jsonl", "path": jsonl(tmp_path, [{"prompt": 3}])}
    mixture = build("data", "mixture", {"sources": [source]})
    with pytest.raises(ValueError, match=r"source 0: rows.jsonl:1: 'prompt' must be text"):
        mixture[0]
