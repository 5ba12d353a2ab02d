"""Rows from Parquet files, from the datasets library, and from mixtures of sources."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rlrun.plugins.registry import PluginError, build, checked_params, load
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


@pytest.mark.parametrize(
    ("rows", "weight", "rounded"),
    [(4, 0.1, "0.4"), (1, 0.5, "0.5"), (3, 0.001, "0.003"), (4, 0.13, None), (1, 0.51, None), (2, 1.0, None)],
)
def test_a_weight_that_takes_no_row_is_refused(rows, weight, rounded, tmp_path: Path) -> None:
    """When the source is built, and when a spec is validated."""
    (tmp_path / "large.jsonl").write_text('{"prompt": "a"}\n' * 9)
    (tmp_path / "small.jsonl").write_text('{"prompt": "b"}\n' * rows)
    sources = [
        {"type": "jsonl", "path": str(tmp_path / "large.jsonl")},
        {"type": "jsonl", "path": str(tmp_path / "small.jsonl"), "weight": weight},
    ]

    def preview() -> list[Any]:
        params = checked_params("data", "mixture", {"sources": sources})
        return list(load("data", "mixture").preview(params, 4))

    if rounded is None:
        assert len(build("data", "mixture", {"sources": sources})) == 9 + max(1, int(weight * rows))
        assert [row.metadata["source"] for row in preview()] == [0, 0] + [1] * min(2, rows)
        return
    message = rf"source 1 \(jsonl\): weight = {weight} takes none of its {rows} rows, because {rounded} rows"
    for use in (lambda: build("data", "mixture", {"sources": sources}), preview):
        with pytest.raises(ValueError, match=message):
            use()


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


def bomb(folder: Path, text: str, rows: int, **options: Any) -> str:
    """A Parquet file of less than 200 KB whose texts together have 256 MiB or more."""
    table = pyarrow.table({"prompt": pyarrow.array([text] * rows)})
    pyarrow.parquet.write_table(table, folder / "bomb.parquet", compression="zstd", **options)
    assert (folder / "bomb.parquet").stat().st_size < 200_000
    return str(folder / "bomb.parquet")


def test_a_text_that_the_file_has_once_is_in_memory_once(tmp_path: Path) -> None:
    path = bomb(tmp_path, "a" * 1024, 1 << 18)
    before = pyarrow.total_allocated_bytes()
    source = build("data", "parquet", {"path": path})
    assert [len(source[number].prompt) for number in (0, (1 << 18) - 1)] == [1024, 1024]
    assert pyarrow.total_allocated_bytes() - before < 8 << 20


def test_long_texts_of_a_small_file_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = bomb(tmp_path, "a" * (1 << 26), 4, use_dictionary=False)
    with pytest.raises(PluginError, match=r"bomb\.parquet, row group 0, column 'prompt': \d+ bytes of the"):
        build("data", "parquet", {"path": path})


def test_texts_that_repeat_the_one_before_are_read_up_to_a_bound(tmp_path: Path) -> None:
    encoding = {"prompt": "DELTA_BYTE_ARRAY"}
    table = pyarrow.table({"prompt": [f"what is {number}?" for number in range(200)]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", use_dictionary=False, column_encoding=encoding)
    assert build("data", "parquet", {"path": str(tmp_path / "a.parquet")})[199].prompt == "what is 199?"
    path = bomb(tmp_path, "a" * 4096, 1 << 16, use_dictionary=False, column_encoding=encoding)
    source = build("data", "parquet", {"path": path})
    with pytest.raises(ValueError, match="row group 0 would become more than 67108864 bytes in memory"):
        source[0]


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_tools_that_are_not_json_are_an_error_of_their_row(kind: str, tmp_path: Path) -> None:
    rows = [{"prompt": "p", "tools": text} for text in ("[" * 100_000, "[1, ", json.dumps([TOOL]))]
    path = jsonl(tmp_path, rows) if kind == "jsonl" else parquet(tmp_path, rows)
    source = build("data", kind, {"path": path, "tools_key": "tools"})
    for number, reason in ((0, "nested more than 200 deep"), (1, "Expecting value")):
        with pytest.raises(ValueError, match=f"'tools' is not the JSON text of a list of tools: .*{reason}"):
            source[number]
    assert source[2].metadata["tools"] == [TOOL]


CHAT = [{"role": "user", "content": "2?"}, {"role": "assistant", "content": "It is\n#### 2"}]


@pytest.mark.parametrize(
    ("keys", "messages", "label"),
    [
        ({}, CHAT, 7),
        ({"last_answer": "drop"}, CHAT[:1], 7),
        ({"last_answer": "label"}, CHAT[:1], "It is\n#### 2"),
        ({"last_answer": "label", "label_pattern": "#### (.*)"}, CHAT[:1], "2"),
        ({"label_pattern": r"\d"}, CHAT, "7"),
    ],
)
def test_the_answer_that_ends_a_chat(
    tmp_path: Path, keys: dict[str, Any], messages: list[dict[str, str]], label: object
) -> None:
    (row,) = check_data("jsonl", {"path": jsonl(tmp_path, [{"prompt": CHAT, "label": 7}]), **keys})
    assert (row.prompt, row.label) == (messages, label)


@pytest.mark.parametrize(
    ("row", "keys", "message"),
    [
        (
            {"prompt": CHAT[1:]},
            {"last_answer": "drop"},
            "'prompt' has only an answer, and no message before it",
        ),
        ({"prompt": "2?", "label": "two"}, {"label_pattern": r"\d"}, "matches nothing in the label 'two'"),
    ],
)
def test_rows_without_what_these_keys_need(
    tmp_path: Path, row: dict[str, Any], keys: dict[str, Any], message: str
) -> None:
    source = build("data", "jsonl", {"path": jsonl(tmp_path, [row]), **keys})
    with pytest.raises(ValueError, match=message):
        source[0]


def test_a_label_has_one_origin(tmp_path: Path) -> None:
    keys = {"path": jsonl(tmp_path, ROWS), "last_answer": "label", "label_key": "label"}
    with pytest.raises(PluginError, match="label_key has no effect"):
        build("data", "jsonl", keys)
