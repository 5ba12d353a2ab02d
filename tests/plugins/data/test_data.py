"""Rows of the shipped data sources, good and broken."""

import json
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.data.jsonl import Jsonl
from rlrun.plugins.data.reasoning_gym import tasks_on_disk
from rlrun.plugins.data.rows import split_slice
from rlrun.plugins.registry import PluginError, build
from rlrun.plugins.testing import check_data, check_reward, sample
from rlrun.plugins.types import Row

SCHEDULE_ROWS = Path(__file__).parents[2] / "data" / "schedule_metric_vectors.jsonl"
PATH_ROWS = [
    row
    for row in map(json.loads, SCHEDULE_ROWS.read_text().splitlines())
    if row["fn"] == "parse_generalized_path"
]


@pytest.mark.parametrize("row", PATH_ROWS, ids=lambda row: row["in"])
def test_slices_agree_with_the_reference(row: dict[str, Any]) -> None:
    path, ends = row["out"]
    assert split_slice(row["in"]) == (path, slice(*ends) if ends else slice(None))


def write(folder: Path, *lines: object) -> str:
    path = folder / "rows.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


def numbered(folder: Path, count: int = 10) -> str:
    return write(folder, *({"prompt": f"p{number}", "label": number} for number in range(count)))


def test_rows_carry_prompt_label_and_metadata(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    path = write(
        tmp_path,
        {"prompt": "1 + 1?", "label": "2", "metadata": {"level": 1}, "source": "ignored"},
        "",
        {"prompt": chat, "label": None},
    )
    first, second = check_data("jsonl", {"path": path})
    assert (first.id, first.prompt, first.label, first.metadata) == ("1", "1 + 1?", "2", {"level": 1})
    assert (second.id, second.prompt, second.label, second.metadata) == ("3", chat, None, {})


def test_keys_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, {"question": "q", "gold": 4, "extra": {"a": 1}, "solution": "s"})
    keys = {
        "prompt_key": "question",
        "label_key": "gold",
        "metadata_key": "extra",
        "response_key": "solution",
    }
    (row,) = check_data("jsonl", {"path": path, **keys})
    assert (row.prompt, row.label, row.metadata, row.response) == ("q", 4, {"a": 1}, "s")


def test_a_label_may_be_in_a_table(tmp_path: Path) -> None:
    table = {"style": "rule", "ground_truth": {"target": ["Rome", "Roma"]}}
    path = write(
        tmp_path,
        {"prompt": "a", "reward_model": table},
        {"prompt": "b", "reward_model.ground_truth.target": "of a column with dots"},
        {"prompt": "c", "reward_model": "no table"},
        {"prompt": "d"},
        {"prompt": "e", "reward_model.ground_truth": {"target": "of a table with dots"}, "reward_model": {}},
    )
    rows = check_data("jsonl", {"path": path, "label_key": "reward_model.ground_truth.target"})
    assert [row.label for row in rows] == [
        ["Rome", "Roma"],
        "of a column with dots",
        None,
        None,
        "of a table with dots",
    ]


@pytest.mark.parametrize(
    ("ends", "labels"), [("[:3]", [0, 1, 2]), ("[-2:]", [8, 9]), ("[2:4]", [2, 3]), ("[:]", list(range(10)))]
)
def test_a_slice_takes_some_rows_under_their_own_ids(tmp_path: Path, ends: str, labels: list[int]) -> None:
    rows = check_data("jsonl", {"path": f"{numbered(tmp_path)}@{ends}"})
    assert [row.label for row in rows] == labels
    assert [row.id for row in rows] == [str(label + 1) for label in labels]


def test_the_last_line_may_lack_its_end_and_text_may_be_any_language(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"prompt": "größer als 三?", "label": ""}\r\n{"prompt": "x", "label": 1}'.encode())
    assert [row.prompt for row in check_data("jsonl", {"path": str(path)})] == ["größer als 三?", "x"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "torn', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "expected a JSON object, found list"),
        ('{"question": "q"}', "the row has no 'prompt'; it has 'question'"),
        ('{"prompt": "", "label": 1}', "'prompt' must be text or a list of messages"),
        ('{"prompt": [], "label": 1}', "'prompt' must be text or a list of messages"),
        ('{"prompt": ["q"], "label": 1}', "'prompt', message 1 is not a table with role and content"),
        ('{"prompt": "q", "label": 1, "metadata": 3}', "'metadata' is not a table but int"),
    ],
    ids=lambda value: value[:24],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    source = build("data", "jsonl", {"path": write(tmp_path, {"prompt": "q", "label": 1}, line)})
    assert source[0].prompt == "q"
    with pytest.raises(ValueError, match=rf"rows\.jsonl:2: .*{message}"):
        source[1]


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{question} ({n})", "1 + 1? (3)"),
        (r"{question} in \boxed{} or \frac{1}{2}", r"1 + 1? in \boxed{} or \frac{1}{2}"),
        ("{{question}} is {question}", "{question} is 1 + 1?"),
    ],
)
def test_a_template_makes_the_prompt_from_columns(tmp_path: Path, template: str, prompt: str) -> None:
    path = write(tmp_path, {"question": "1 + 1?", "n": 3})
    [row] = check_data("jsonl", {"path": path, "prompt_template": template})
    assert (row.prompt, row.label) == (prompt, None)


def test_a_template_with_an_unknown_column_or_a_prompt_key_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {"question": "1 + 1?"})
    with pytest.raises(ValueError, match="the row has no 'qestion'; it has 'question'"):
        build("data", "jsonl", {"path": path, "prompt_template": "{qestion}"})[0]
    with pytest.raises(PluginError, match="so prompt_key has no effect"):
        build("data", "jsonl", {"path": path, "prompt_template": "{question}", "prompt_key": "question"})


def test_rows_without_label_or_tools_have_none(tmp_path: Path) -> None:
    path = write(tmp_path, {"prompt": "q"}, {"prompt": "q", "tools": None}, {"prompt": "q", "tools": "[1]"})
    rows = check_data("jsonl", {"path": path, "tools_key": "tools"})
    assert [(row.label, row.metadata) for row in rows] == [(None, {}), (None, {}), (None, {"tools": [1]})]


def test_a_preview_looks_all_over_a_large_file(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{n} " + "x" * 100, "label": n} for n in range(5000)]
    params = Jsonl.Params(path=write(tmp_path, *rows[:4000], '{"torn', *rows[4000:]))
    previewed = list(Jsonl.preview(params, 20))
    labels = [row.label for row in previewed if isinstance(row, Row)]
    assert labels[:10] == list(range(10))
    assert labels[-1] > 4000
    assert labels == sorted(set(labels))


def test_the_tasks_found_on_disk_are_those_of_the_library() -> None:
    import reasoning_gym

    assert tasks_on_disk() == set(reasoning_gym.factory.DATASETS)


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"prompt": "\xff\xfe", "label": 1}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: not UTF-8"):
        build("data", "jsonl", {"path": str(path)})[0]


def test_a_demonstration_that_is_missing_is_named(tmp_path: Path) -> None:
    source = build("data", "jsonl", {"path": numbered(tmp_path), "response_key": "response"})
    with pytest.raises(ValueError, match=r"rows\.jsonl:1: the row has no 'response'"):
        source[0]


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (".gone", "there is no file"),
        ("@[3:3]", r"has no rows \(the file has 10\)"),
        ("@[1:2", "ends in an invalid slice"),
        ("@[a:b]", "ends in an invalid slice"),
    ],
)
def test_a_path_that_leads_nowhere_is_refused(tmp_path: Path, suffix: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build("data", "jsonl", {"path": numbered(tmp_path) + suffix})


def test_reasoning_gym_rows_depend_on_the_parameters_alone() -> None:
    params = {"task": "chain_sum", "size": 20, "seed": 3, "task_params": {"max_terms": 2}}
    rows = check_data("reasoning_gym", params)
    assert len(rows) == 20
    other = build("data", "reasoning_gym", {**params, "seed": 4})
    assert [row.prompt for row in rows] != [other[index].prompt for index in range(20)]


@pytest.mark.parametrize("task", ["list_functions", "countdown", "basic_arithmetic", "number_format"])
def test_reasoning_gym_rows_are_the_same_in_any_order(task: str) -> None:
    for row in check_data("reasoning_gym", {"task": task, "size": 20}):
        graded = sample(str(row.label), label=row.label, metadata=row.metadata)
        assert check_reward("reasoning_gym", {}, [graded]) == [1]


def test_a_task_without_one_right_answer_has_no_demonstration() -> None:
    row = build("data", "reasoning_gym", {"task": "graph_color", "size": 1})[0]
    assert row.label is row.response is None


def test_reasoning_gym_templates() -> None:
    row = build(
        "data",
        "reasoning_gym",
        {
            "task": "chain_sum",
            "size": 1,
            "prompt_template": "Q: {question}\nA:",
            "response_template": "The answer is {answer}.",
        },
    )[0]
    entry = row.metadata["entry"]
    assert row.prompt == f"Q: {entry['question']}\nA:"
    assert row.response == f"The answer is {entry['answer']}."
    assert row.label == entry["answer"]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"task": "chain_sums"}, "has no task 'chain_sums'; did you mean 'chain_sum'"),
        ({"task": "chain_sum", "task_params": {"terms": 3}}, "does not take these settings: .*terms"),
        (
            {"task": "chain_sum", "task_params": {"min_terms": 5, "max_terms": 2}},
            "does not take these settings",
        ),
        ({"task": "chain_sum", "size": 0}, "size: must be at least 1"),
    ],
)
def test_reasoning_gym_settings_are_checked(params: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build("data", "reasoning_gym", params)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([{"from": "human", "value": "q"}], "as in ShareGPT's form: rename them to 'role' and 'content'"),
        ([{"role": "user", "content": "q"}, {"role": "gpt", "content": "a"}], "message 2 has the role 'gpt'"),
        ([{"content": "q"}], "message 1 has no role"),
        ([{"role": "user"}], "its content must be text, and there is none"),
        ([{"role": "user", "content": None}], "its content must be text, and there is none"),
        ([{"role": "user", "content": 5}], "its content must be text, and it is int"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "a part of type 'image_url'"),
        (json.dumps([{"role": "user", "content": "q"}]), "store the list itself"),
    ],
)
def test_messages_that_a_template_would_print_as_python_are_refused(
    tmp_path: Path, messages: object, message: str
) -> None:
    source = build("data", "jsonl", {"path": write(tmp_path, {"prompt": messages})})
    with pytest.raises(ValueError, match=message):
        source[0]


def test_content_in_parts_of_text_is_one_text_and_a_call_needs_none(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "1 + "}, {"type": "text", "text": "1?"}]
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add"}}]}
    chat = [{"role": "user", "content": parts}, call, {"role": "tool", "content": "2"}]
    source = build("data", "jsonl", {"path": write(tmp_path, {"prompt": chat})})
    assert source[0].prompt == [{"role": "user", "content": "1 + 1?"}, *chat[1:]]
    assert build("data", "jsonl", {"path": write(tmp_path, {"prompt": "[1, 2] or [3]?"})})[0].prompt


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1f\x8b\x08", "is compressed by gzip"),
        (b"\x28\xb5\x2f\xfd", "is compressed by zstd"),
        (b"PAR1....", 'is a Parquet file, and rlrun reads JSON lines: use type = "parquet"'),
        ('{"prompt": "q"}'.encode("utf-16"), "is UTF-16"),
        (b'[{"prompt": "q"}]', r"jq -c '\.\[\]' rows.jsonl"),
        (b'{\n "prompt": "q"\n}\n', r"jq -c '\.' rows.jsonl"),
        (b"question,answer\n1,2\n", "it begins with 'question,answer': write each row as an object"),
        (b"", "has no rows"),
        (b"\n \n", "has no rows"),
    ],
)
def test_files_of_another_format_are_named_with_the_cure(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(content)
    params = Jsonl.Params(path=str(path))
    for read in (Jsonl, Jsonl.columns, lambda params: list(Jsonl.preview(params, 4))):
        with pytest.raises(ValueError, match=message):
            read(params)
    with pytest.raises(ValueError, match="is a folder"):
        Jsonl(Jsonl.Params(path=str(tmp_path)))


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"prompt": "q"}\r\n\r\n{"prompt": "r"}\r\n')
    params = Jsonl.Params(path=str(path))
    assert [row.prompt for row in Jsonl.preview(params, 4) if isinstance(row, Row)] == ["q", "r"]
    assert Jsonl(params)[0].prompt == "q"
