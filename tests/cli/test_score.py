"""`rlrun score`: one JSON line for each line of a file, whatever is in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_outcome import Command

CASES = Path(__file__).parents[1] / "data" / "reward_cases.jsonl"


def write(file: Path, *lines: Any) -> Path:
    file.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
    return file


def results(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


def test_contract_rows_of_every_kind_by_the_name_in_their_metadata(rlrun: Command, tmp_path: Path) -> None:
    rows = [json.loads(line) for line in CASES.read_text().splitlines()]
    rows = [row for row in rows if row["class"] == "contract" and row["rm_type"] != "remote_rm"]
    lines = [{**row, "metadata": {"rm_type": row["rm_type"], **(row.get("metadata") or {})}} for row in rows]
    done = rlrun("score", write(tmp_path / "rows.jsonl", *lines), "--reward", "exact_match")
    assert done.code == 0
    for row, result in zip(rows, results(done.out), strict=True):
        expected = row["expected"]["reward"]
        number = expected["score"] if isinstance(expected, dict) else expected
        assert result["reward"] == pytest.approx(number), row["id"]
        assert result["id"] == row["id"]


def test_parameters_are_set_and_tables_shown(rlrun: Command, tmp_path: Path) -> None:
    file = write(
        tmp_path / "rows.jsonl",
        {"id": "a", "response": "Answer: 42", "label": 42},
        {"response": None, "label": 42},
    )
    [right, wrong] = results(rlrun("score", file, "--reward", "dapo", "--set", "key=acc").out)
    assert right == {"id": "a", "reward": 1.0, "detail": {"score": 1.0, "acc": 1.0, "pred": "42"}}
    assert (wrong["id"], wrong["reward"]) == ("2", 0.0)
    assert results(rlrun("score", file, "--reward", "dapo").out)[1]["reward"] == -1
    [matched, _] = results(rlrun("score", file, "--reward", "format", "--set", "pattern=Answer: .*").out)
    assert matched["reward"] == 1


def test_what_cannot_be_scored_is_said_on_its_own_line(rlrun: Command, tmp_path: Path) -> None:
    file = write(
        tmp_path / "rows.jsonl",
        "{broken",
        "[1]",
        {"response": "x", "metadata": {"rm_type": "reasoning_gym"}},
        {"response": "x", "metadata": {"rm_type": "no_such_reward"}},
        {"response": "x", "label": "y", "metadata": "text"},
        {"id": "\ud800", "response": "Answer: \ud800\x00", "metadata": {"rm_type": "dapo"}},
        {"respons": "x", "label": "y"},
    )
    done = rlrun("score", file, "--reward", "exact_match")
    assert done.code == 0
    errors = [result["detail"].get("error", "") for result in results(done.out)]
    assert [result["reward"] for result in results(done.out)] == [None, None, None, None, 0.0, -1.0, None]
    assert "line 1: Expecting property name" in errors[0]
    assert "expected a JSON object, found list" in errors[1]
    assert "the row has no reasoning-gym entry" in errors[2]
    assert "no rewards plugin is named 'no_such_reward'" in errors[3]
    assert errors[6] == "line 7: no response; the line has respons, label"
    zeroed = rlrun("score", file, "--reward", "exact_match", "--on-error", "zero")
    assert results(zeroed.out)[2]["reward"] == 0
    stopped = rlrun("score", file, "--reward", "exact_match", "--on-error", "stop")
    assert stopped.code == 3
    assert "reward 'exact_match' on sample 3" in stopped.err


@pytest.mark.parametrize("tokens", [2**31, 10**30, -1, "x", True, [3]])
def test_a_number_of_tokens_that_no_sample_has_costs_no_memory(
    tokens: Any, rlrun: Command, tmp_path: Path
) -> None:
    file = write(
        tmp_path / "rows.jsonl", {"response": "x", "tokens": tokens}, {"response": "x", "images": {"row": 3}}
    )
    reasons = [
        result["detail"]["error"] for result in results(rlrun("score", file, "--reward", "random").out)
    ]
    assert reasons == [
        "line 1: tokens must be a whole number from 0 to 16777216",
        "line 2: images.row is not a list of the digests of images",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--reward", "maht"], "did you mean 'math'"),
        (["--reward", "math", "--set", "cut=1"], "cut: unknown key (takes: cut_thinking)"),
        (["--reward", "math", "--set", "cut_thinkin=1"], "unknown key (did you mean `cut_thinking`?)"),
        (["--reward", "math", "--set", "weight=much"], 'weight: must be a number, found the string "much"'),
        (["--reward", "math", "--workers", "0"], "workers: must be at least 1, found 0"),
        (["--reward", "math", "--timeout", "0"], "timeout: must be greater than 0, found 0"),
        (["--reward", "math", "--set", "cut"], "write KEY=VALUE"),
        (["--reward", "rewards.py:Mine"], "--allow-local-plugins"),
    ],
)
def test_wrong_options_are_told_in_words(
    rlrun: Command, tmp_path: Path, options: list[str], message: str
) -> None:
    done = rlrun("score", write(tmp_path / "rows.jsonl", {}), *options)
    assert done.code == 2
    assert message in " ".join(done.err.split())


def test_a_missing_file_is_named(rlrun: Command) -> None:
    done = rlrun("score", "no-such.jsonl", "--reward", "math")
    assert done.code == 2
    assert "there is no file no-such.jsonl" in done.err


def test_a_class_in_a_file_where_it_is_allowed(rlrun: Command, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(LOCAL)
    file = write(tmp_path / "rows.jsonl", {"response": "abc"})
    name = f"{tmp_path}/mine.py:Mine"
    done = rlrun("score", file, "--reward", name, "--set", "factor=2", "--allow-local-plugins")
    assert results(done.out) == [{"id": "1", "reward": 6.0, "detail": {}}]


LOCAL = """
from rlrun.specs.sections.section import Section

class MineParams(Section):
    factor: int = 1

class Mine:
    Params = MineParams
    api_version = 1

    def __init__(self, params):
        self.factor = params.factor

    def score(self, sample):
        return self.factor * len(sample.text)
"""
