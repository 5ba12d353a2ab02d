"""`rlrun contamination` reads both sides of a spec and says what they share."""

import json
from pathlib import Path

from tests.cli.cli_outcome import Command

SPEC = """
name = "job"

[model]
path = "m"

[data]
path = "rows.jsonl"

[rollout]
batch_size = 2
max_prompt_tokens = 64
max_response_tokens = 16

[[rewards]]
type = "exact_match"

[trainer]
steps = 1

[[eval.datasets]]
name = "held-out"
path = "held_out.jsonl"

[[eval.datasets]]
name = "other"
path = "other.jsonl"
"""


def write_rows(path: Path, *prompts: str | None) -> None:
    rows = [{"label": "1"} if prompt is None else {"prompt": prompt, "label": "1"} for prompt in prompts]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_shared_questions_are_named_by_row(rlrun: Command, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(SPEC)
    write_rows(tmp_path / "rows.jsonl", "What is one?", "What is two?", None)
    write_rows(tmp_path / "held_out.jsonl", "What is TWO?", "What is three?", None)
    write_rows(tmp_path / "other.jsonl", "What is four?")
    spec = str(tmp_path / "job.toml")
    shown = rlrun("contamination", spec)
    assert shown.code == 2
    assert (
        "held-out: 1 of the 2 questions are in the 2 training rows: 1 with the same text, 0 with" in shown.out
    )
    assert "other: none of the 1 questions is in the 2 training rows" in shown.out
    found = json.loads(rlrun("contamination", spec, "--json").out)
    assert found["training_rows"] == 2
    [held_out, other] = found["datasets"]
    assert [(each["text"], each["is_same"]) for each in held_out["found"]] == [("What is TWO?", True)]
    assert other == {"name": "other", "rows": 1, "found": []}


def test_a_spec_without_evaluation_is_told(rlrun: Command, tmp_path: Path) -> None:
    (tmp_path / "job.toml").write_text(SPEC.partition("[[eval.datasets]]")[0])
    write_rows(tmp_path / "rows.jsonl", "What is one?", "What is two?")
    shown = rlrun("contamination", str(tmp_path / "job.toml"))
    assert shown.code == 2
    assert "the spec has no [[eval.datasets]]" in shown.err
