"""`rlrun init --data`: the spec for rows of each format, as it is written."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.registry import build
from rlrun.plugins.types import Row
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.job import Spec
from tests.cli.cli_outcome import Command

BOX = "Put the final answer in \\boxed{}."
TAGS = "Give the final answer in <answer> tags."
SUMS = [{"question": f"{number} + 1?", "answer": str(number + 1)} for number in range(40)]
CHATS = [
    {
        "messages": [
            {"role": "user", "content": row["question"]},
            {"role": "assistant", "content": f"\\boxed{{{row['answer']}}}"},
        ]
    }
    for row in SUMS
]


def lines(rows: list[dict[str, Any]]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "rows.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    return write


def table(delimiter: str, name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / name
        path.write_text(
            "".join(f"{q}{delimiter}{a}\n" for q, a in [SUMS[0].keys(), *(row.values() for row in SUMS)])
        )
        return path

    return write


def parquet(folder: Path) -> Path:
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(SUMS), folder / "rows.parquet")
    return folder / "rows.parquet"


def parquet_folder(folder: Path) -> Path:
    (folder / "parts").mkdir()
    parquet(folder / "parts")
    return folder / "parts"


def hub_folder(folder: Path) -> Path:
    import pyarrow.parquet

    data = folder / "hub" / "data"
    data.mkdir(parents=True)
    for split, rows in (("train", SUMS[:30]), ("test", SUMS[30:])):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), data / f"{split}-00000-of-00001.parquet")
    (data.parent / "README.md").write_text(
        "---\nconfigs:\n- config_name: main\n  data_files:\n  - {split: train, path: data/train-*}\n"
        "  - {split: test, path: data/test-*}\n---\n"
    )
    return data.parent


def saved_folder(folder: Path) -> Path:
    from datasets import Dataset

    Dataset.from_list(SUMS).save_to_disk(str(folder / "saved"))
    return folder / "saved"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def rows_of(data: DataSpec) -> list[Row]:
    source = build("data", data.type, data.params)
    return [source[index] for index in range(len(source))]


def written(rlrun: Command, folder: Path, data: Path, *options: object) -> Spec:
    """Writes a spec for the data, and checks that `validate` accepts it."""
    path = folder / "own.toml"
    assert rlrun("init", path, "--data", data, "--gpus", "0", *options).code == 0
    assert rlrun("validate", path).code == 0
    return load_checked_spec([path]).spec


@pytest.mark.parametrize(
    ("write", "kind", "counts"),
    [
        (lines(SUMS), "jsonl", (36, 4)),
        (table(",", "rows.csv"), "csv", (36, 4)),
        (table(";", "rows.csv"), "csv", (36, 4)),
        (table("\t", "rows.tsv"), "csv", (36, 4)),
        (parquet, "parquet", (36, 4)),
        (parquet_folder, "parquet", (36, 4)),
        (hub_folder, "hf", (30, 10)),
        (saved_folder, "hf", (36, 4)),
    ],
    ids=["jsonl", "csv", "semicolons", "tabs", "parquet", "folder of parquet", "hub folder", "save_to_disk"],
)
def test_formats(
    rlrun: Command, tmp_path: Path, write: Callable[[Path], Path], kind: str, counts: tuple[int, int]
) -> None:
    spec = written(rlrun, tmp_path, write(tmp_path))
    (held_out,) = spec.eval.datasets
    assert (spec.data.type, held_out.type) == (kind, kind)
    train, test = rows_of(spec.data), rows_of(held_out)
    assert (len(train), len(test)) == counts
    assert (train[0].prompt, train[0].label) == (f"0 + 1?\n{BOX}", "1")
    assert [row.prompt for row in [*train, *test]] == [f"{row['question']}\n{BOX}" for row in SUMS]


def test_chats_whose_last_answer_is_the_label(rlrun: Command, tmp_path: Path) -> None:
    spec = written(rlrun, tmp_path, lines(CHATS)(tmp_path))
    row = rows_of(spec.data)[3]
    assert row.prompt == [{"role": "system", "content": BOX}, {"role": "user", "content": "3 + 1?"}]
    assert row.label == "\\boxed{4}"


def test_chats_with_a_label_of_their_own(rlrun: Command, tmp_path: Path) -> None:
    system = [{"role": "system", "content": "Add."}]
    rows = [{"messages": [*system, *chat["messages"]], "label": 9} for chat in CHATS]
    spec = written(rlrun, tmp_path, lines(rows)(tmp_path))
    row = rows_of(spec.data)[0]
    assert row.prompt == [*system, {"role": "user", "content": "0 + 1?"}]
    assert row.label == 9
    assert f"# the system messages of these chats should say: {BOX}" in (tmp_path / "own.toml").read_text()


def test_what_prompts_ask_for_already_is_not_asked_for_again(rlrun: Command, tmp_path: Path) -> None:
    rows = [{"prompt": f"{row['question']} Use \\boxed{{}}.", "label": row["answer"]} for row in SUMS]
    spec = written(rlrun, tmp_path, lines(rows)(tmp_path))
    assert spec.data.params["prompt_key"] == "prompt"
    assert not {"prompt_template", "system_prompt"} & spec.data.params.keys()


@pytest.mark.parametrize("column", ["question", "1st"])
def test_an_exact_match_asks_for_tags(rlrun: Command, tmp_path: Path, column: str) -> None:
    rows = [{column: row["question"], "answer": row["answer"]} for row in SUMS]
    options = ("--reward", "exact_match", "--prompt-key", column)
    spec = written(rlrun, tmp_path, lines(rows)(tmp_path), *options)
    prompt = rows_of(spec.data)[0].prompt
    assert TAGS in str(prompt)
    assert spec.rewards[0].params == {"answer_pattern": "<answer>(.*?)</answer>"}


def test_a_reward_of_ones_own_is_a_function_in_a_file(
    rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "")
    path, file = tmp_path / "own.toml", tmp_path / "own_rewards.py"
    file.write_text("import rlrun\n\n\n@rlrun.reward\ndef exact(sample) -> float:\n    return 1.0\n")
    options = ("--data", lines(SUMS)(tmp_path), "--gpus", "0", "--reward", "own_rewards.py:exact")
    refused = rlrun("init", path, *options)
    assert (refused.code, "--allow-local-plugins" in refused.err, path.exists()) == (2, True, False)
    done = rlrun("init", path, *options, "--allow-local-plugins")
    assert (done.code, f"rlrun launch {path} --allow-local-plugins" in done.out) == (0, True)
    assert 'type = "own_rewards.py:exact"  # code of your own' in path.read_text()
    assert rlrun("validate", path, "--allow-local-plugins").code == 0


def test_labels_of_gsm8k(rlrun: Command, tmp_path: Path) -> None:
    rows = [{"question": row["question"], "answer": f"Add.\n#### {row['answer']}"} for row in SUMS]
    spec = written(rlrun, tmp_path, lines(rows)(tmp_path))
    assert [row.label for row in rows_of(spec.data)] == [row["answer"] for row in SUMS[:36]]


def test_few_rows_are_all_trained_on(rlrun: Command, tmp_path: Path) -> None:
    spec = written(rlrun, tmp_path, lines(SUMS[:5])(tmp_path))
    assert (len(rows_of(spec.data)), spec.eval.datasets) == (5, ())


def test_a_dataset_with_several_configurations_is_refused(rlrun: Command, tmp_path: Path) -> None:
    folder = hub_folder(tmp_path)
    configs = "".join(f"- {{config_name: {name}, data_files: data/train-*}}\n" for name in ("a", "b"))
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    outcome = rlrun("init", tmp_path / "own.toml", "--data", folder)
    assert (outcome.code, "has the configurations a, b" in outcome.err) == (2, True)
