"""What newcomers mistype, with the whole answer (mistakes.txt).

A case is a command after `$ `, and what it prints, in a folder with a valid `job.toml` and what FILES has.
Every command ends with exit code 2, prints nothing else, and claims no run's name. `benchmarks/mistakes.py`
times the same commands as processes.

After an intended change of a message, write the new answers and review them with `git diff`:

    .venv/bin/python -m tests.cli.test_mistakes
"""

import json
import os
import shlex
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cli.cli_outcome import Command

ANSWERS = Path(__file__).with_name("mistakes.txt")
JOB = """
[model]
path = "package:quickstart/model"

[data]
type = "jsonl"
path = "rows.jsonl"

[rollout]
batch_size = 4
samples_per_prompt = 4
max_prompt_tokens = 48
max_response_tokens = 64

[[rewards]]
type = "exact_match"

[algorithm]
type = "grpo"

[trainer]
steps = 10
dtype = "float32"

[engine]
dtype = "float32"
"""
FILES = {
    "job.toml": JOB,
    "rows.jsonl": "".join(json.dumps({"prompt": f"{i}+1=?", "label": str(i + 1)}) + "\n" for i in range(40)),
    "my_rewards.py": "def exact(sample):\n    return float(sample.response == sample.label)\n",
    "train.py": "print(1)\n",
    "unclosed.toml": '[model\npath = "x"\n',
    "twice.toml": '[model]\npath = "x"\n[model]\npath = "y"\n',
    "no_model.toml": '[data]\ntype = "jsonl"\npath = "rows.jsonl"\n[[rewards]]\ntype = "math"\n',
    "unknown_table.toml": 'extends = "job.toml"\n[training]\nsteps = 5\n',
    "secret.toml": 'extends = "job.toml"\n[[trackers]]\ntype = "wandb"\napi_key = "abc"\n',
}


def write_files(folder: Path) -> None:
    """Writes what the commands of the table find."""
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")


def read_answers() -> dict[str, str]:
    """Returns what each command prints."""
    cases = ANSWERS.read_text("utf-8").removeprefix("$ ").split("\n\n$ ")
    return {typed: answer.rstrip("\n") for typed, _, answer in (case.partition("\n") for case in cases)}


@pytest.mark.parametrize(("typed", "answer"), read_answers().items(), ids=lambda text: text.split("\n")[0])
def test_a_mistake_is_answered(
    typed: str, answer: str, rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    outcome = rlrun(*shlex.split(typed)[1:])
    printed = (outcome.out + outcome.err).replace(str(tmp_path), "/job").replace(sys.executable, "python")
    assert printed.rstrip("\n") == answer
    assert outcome.code == 2
    assert not (tmp_path / "runs").exists()


def test_there_are_forty() -> None:
    assert len(read_answers()) >= 40


def main() -> None:
    """Writes the answers again."""
    answers = {}
    for typed in read_answers():
        with TemporaryDirectory() as name, chdir(name):
            write_files(Path(name))
            command = [str(Path(sys.executable).with_name("rlrun")), *shlex.split(typed)[1:]]
            environment = os.environ | {"COLUMNS": "120"}
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                stdin=subprocess.DEVNULL,
                env=environment,
                check=False,
            )
            printed = (done.stdout + done.stderr).replace(str(Path(name).resolve()), "/job")
            answers[typed] = printed.replace(sys.executable, "python").rstrip("\n")
    ANSWERS.write_text(
        "\n\n".join(f"$ {typed}\n{answer}" for typed, answer in answers.items()) + "\n", "utf-8"
    )


if __name__ == "__main__":
    main()
