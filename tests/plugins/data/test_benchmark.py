"""Published sets by name: their rows, their errors, and a whole evaluation of every set."""

import base64
import json
import pickle
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.registry import build
from rlrun.plugins.types import Row
from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.job.launch import launch
from rlrun.runner.records.metrics_file import read_metrics
from rlrun.specs.benchmarks import benchmarks
from rlrun.specs.problems.findings import SpecError
from tests.runner.engines.chat_stand_in import Answer, ChatStandIn, choices

FILES = Path(__file__).parents[2] / "data" / "benchmarks"
"""Made-up rows in the columns of each set."""
RIGHT = {
    "How many pens": r"\boxed{12}",
    "1,000 cups": r"\boxed{1080}",
    r"\frac{1}{2}+": r"\boxed{5/6}",
    "2^{10}": r"\boxed{24}",
    "sum of the digits": r"\boxed{27}",
    r"7 \cdot 11": r"\boxed{77}",
    "no charge": "Answer: C",
    "is prime": "It is odd.\nAnswer: C",
    "Write about rain": "Rain falls on roofs and fields",
    "the sea is like": "It has 2 tides and 7 seas.",
    "def add_all": "```python\ndef add_all(numbers: list) -> int:\n    return sum(numbers)\n```",
    "Print the sum": "```python\na, b = map(int, input().split())\nprint(a + b)\n```",
    "the list twice": (
        "```python\nfrom typing import List\nclass Solution:\n"
        "    def twice(self, nums: List[int], times: int) -> List[int]:\n        return nums * times\n```"
    ),
}
"""A right answer to each row, by a part of its prompt."""


def rows(name: str, **params: Any) -> list[Row]:
    source = build("data", "benchmark", {"set": name, "path": str(FILES / f"{name}.jsonl"), **params})
    return [source[index] for index in range(len(source))]


def test_every_set_has_rows_here() -> None:
    assert {path.stem for path in FILES.iterdir()} == set(benchmarks())
    assert len({row.prompt for name in benchmarks() for row in rows(name)}) == len(RIGHT)


def test_the_choices_of_a_question_have_one_order() -> None:
    [first], [second] = rows("gpqa-diamond"), rows("gpqa-diamond")
    assert first == second
    letters = dict(zip("ABCD", first.metadata["choices"], strict=True))
    assert letters[first.label] == "The neutron"
    assert "C) The neutron" in str(first.prompt)


def test_a_slice_of_a_set() -> None:
    assert [row.label for row in rows("gsm8k", rows="[1:]")] == ["1,080"]
    with pytest.raises(ValueError, match=r"has no rows in \[9:\]"):
        rows("gsm8k", rows="[9:]")


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gsm8k", {"answer": None}, "no column 'answer', which GSM8K has (there: question)"),
        ("gsm8k", {"answer": "12"}, "the answer does not match '#### (.*)': '12'"),
        ("gpqa-diamond", {"Incorrect Answer 2": None}, "no column 'Incorrect Answer 2'"),
        ("mmlu-pro", {"answer": "J"}, "the answer 'J' is not the letter of one of 6 options"),
        ("humaneval-plus", {"entry_point": None}, "no column 'entry_point', which HumanEval+ has"),
        ("livecodebench-v6", {"private_test_cases": "no"}, "the private tests cannot be read"),
    ],
)
def test_other_columns_are_named(tmp_path: Path, name: str, change: Mapping[str, Any], message: str) -> None:
    record = json.loads((FILES / f"{name}.jsonl").read_text().splitlines()[0]) | change
    kept = {column: value for column, value in record.items() if value is not None}
    (tmp_path / "set.jsonl").write_text(json.dumps(kept))
    with pytest.raises(ValueError) as error:
        rows(name, path=str(tmp_path / "set.jsonl"))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gsm8k", {"question": None}, "the column 'question' is empty"),
        ("math-500", {"answer": " "}, "the column 'answer' is empty"),
        ("math-500", {"answer": ["x"]}, "answer is list, not a text or a number"),
        ("mmlu-pro", {"answer": "AB"}, "the answer 'AB' is not the letter of one of 6 options"),
        ("mmlu-pro", {"options": "abcdef"}, "options is str, not a list"),
        ("gpqa-diamond", {"Incorrect Answer 1": None}, "the column 'Incorrect Answer 1' is empty"),
        ("ifeval", {"kwargs": [None, {}]}, "'NoneType' object has no attribute 'items'"),
        ("ifeval", {"kwargs": "[{}, {}]"}, "kwargs is str, not a list"),
        ("ifeval", {"kwargs": [{}]}, "2 instructions have 1 tables of arguments"),
        ("humaneval-plus", {"entry_point": ["f"]}, "entry_point is list"),
        ("livecodebench-v6", {"metadata": "[1]"}, "'list' object has no attribute 'get'"),
        ("livecodebench-v6", {"private_test_cases": '{"input": 1}'}, "private tests is dict, not a list"),
        ("livecodebench-v6", {"private_test_cases": "[]", "public_test_cases": "[]"}, "it has no tests"),
    ],
)
def test_a_wrong_value_is_an_error_of_its_row(
    tmp_path: Path, name: str, change: Mapping[str, Any], message: str
) -> None:
    record = json.loads((FILES / f"{name}.jsonl").read_text().splitlines()[0]) | change
    (tmp_path / "set.jsonl").write_text(json.dumps(record))
    with pytest.raises(ValueError, match="row 0") as error:
        rows(name, path=str(tmp_path / "set.jsonl"))
    assert message in str(error.value)


def test_a_line_ends_only_at_a_line_feed(tmp_path: Path) -> None:
    record = {"question": "one\u2028two\x85three", "answer": "#### 12"}
    (tmp_path / "set.jsonl").write_text("\ufeff" + json.dumps(record, ensure_ascii=False) + "\r\n", "utf-8")
    [row] = rows("gsm8k", path=str(tmp_path / "set.jsonl"))
    assert str(row.prompt).startswith(record["question"])
    (tmp_path / "set.jsonl").write_text("\n{]")
    with pytest.raises(ValueError, match=r"set\.jsonl, line 2: "):
        rows("gsm8k", path=str(tmp_path / "set.jsonl"))


def test_a_copy_has_no_revision_and_a_slice_has_numbers() -> None:
    with pytest.raises(ValueError, match="revision is of the hub, and path is a copy"):
        rows("gsm8k", revision="main")
    with pytest.raises(ValueError, match=r'rows: "\[-:\]" does not fit the pattern'):
        rows("gsm8k", rows="[-:]")


@pytest.mark.parametrize(
    "packed",
    [
        b"", b"\x80\x04.", b"K\x05.", b"\x80\x04h\x05.", b"\x80\x04]K\x01b.", b"G\x00.",
        b"\x80\x04\x8e" + (2**60).to_bytes(8, "little") + b".",
    ],
)  # fmt: skip
def test_damaged_private_tests_are_an_error_of_their_row(tmp_path: Path, packed: bytes) -> None:
    record = json.loads((FILES / "livecodebench-v6.jsonl").read_text().splitlines()[0])
    text = base64.b64encode(zlib.compress(packed)).decode()
    (tmp_path / "set.jsonl").write_text(json.dumps(record | {"private_test_cases": text}))
    with pytest.raises(ValueError, match=r"row 0: the private tests cannot be read: ."):
        rows("livecodebench-v6", path=str(tmp_path / "set.jsonl"))


def test_private_tests_run_no_code(tmp_path: Path) -> None:
    record = json.loads((FILES / "livecodebench-v6.jsonl").read_text().splitlines()[0])
    packed = base64.b64encode(zlib.compress(pickle.dumps(Path("/")))).decode()
    (tmp_path / "set.jsonl").write_text(json.dumps(record | {"private_test_cases": packed}))
    with pytest.raises(ValueError, match=r"the private tests name pathlib.*only text is read"):
        rows("livecodebench-v6", path=str(tmp_path / "set.jsonl"))


def test_a_set_of_the_hub_is_asked_for_at_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    asked: list[tuple[Any, ...]] = []

    def load(path: str, name: str | None, *, split: str, revision: str | None, data_files: Any) -> Any:
        asked.append((path, name, split, revision, data_files))
        raise OSError("no hub here")

    monkeypatch.setattr(datasets, "load_dataset", load)
    for name in benchmarks():
        with pytest.raises(ValueError, match="no hub here"):
            build("data", "benchmark", {"set": name, "rows": "[:8]"})
    by_path = {each[0]: each[1:] for each in asked}
    assert by_path["openai/gsm8k"] == ("main", "test", "cc7b047b6e5bb11b4f1af84efc572db110a51b3c", None)
    assert by_path["json"] == (
        None,
        "train",
        None,
        "hf://datasets/livecodebench/code_generation_lite@0fe84c3912ea0c4d4a78037083943e8f0c4dd505/test6.jsonl",
    )
    assert len(asked) == len(benchmarks())


def test_a_folder_of_the_library_is_read_with_its_split(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    lines = (FILES / "gsm8k.jsonl").read_text()
    (tmp_path / "test.jsonl").write_text(lines)
    (tmp_path / "train.jsonl").write_text(lines * 3)
    assert [row.label for row in rows("gsm8k", path=str(tmp_path), rows="[-1:]")] == ["1,080"]


SPEC = """
name = "sets"
[model]
path = "org/toy"
[data]
type = "benchmark"
set = "gsm8k"
[debug]
mode = "eval"
[trainer]
steps = 1
[scoring]
workers = 1
[eval]
samples_per_prompt = 2
[eval.server]
url = "{url}"
model = "org/toy"
"""
TABLE = """
[[eval.datasets]]
name = "{name}"
type = "benchmark"
path = "{path}"
"""


def answer(body: Mapping[str, Any]) -> Answer:
    """A right and a wrong answer."""
    prompt = body["messages"][0]["content"]
    [right] = [text for part, text in RIGHT.items() if part in prompt]
    return choices(right, "no, 3, sea")


def test_an_evaluation_of_every_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tables = [TABLE.format(name=name, path=FILES / f"{name}.jsonl") for name in benchmarks()]
    with ChatStandIn(answer) as server:
        (tmp_path / "spec.toml").write_text(SPEC.format(url=server.url) + "".join(tables))
        launch(load_checked_spec([tmp_path / "spec.toml"]))
    [line] = read_metrics(tmp_path / "runs" / "sets" / "metrics.jsonl")
    assert {name: line[f"eval/{name}/reward"] for name in benchmarks()} == dict.fromkeys(benchmarks(), 0.5)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "gsm9k"}, 'there is no set "gsm9k": did you mean "gsm8k"?'),
        ({"name": "sums", "set": "math-500", "rows": "10"}, "rows"),
    ],
)
def test_mistakes_are_reported_at_their_key(tmp_path: Path, table: Mapping[str, str], message: str) -> None:
    (tmp_path / "spec.toml").write_text(SPEC.format(url="http://127.0.0.1:1/v1"))
    keys = ", ".join(f'{key} = "{value}"' for key, value in table.items())
    with pytest.raises(SpecError) as error:
        load_checked_spec([tmp_path / "spec.toml"], [f'eval.datasets=[{{type = "benchmark", {keys}}}]'])
    assert message in str(error.value)


def test_own_rewards_replace_those_of_the_set(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(
        SPEC.format(url="http://127.0.0.1:1/v1")
        + TABLE.format(name="gsm8k", path=FILES / "gsm8k.jsonl")
        + 'rewards = [{ type = "math_verify" }]\n'
    )
    [dataset] = load_checked_spec([tmp_path / "spec.toml"]).spec.eval.datasets
    assert [reward.type for reward in dataset.rewards] == ["math_verify"]
