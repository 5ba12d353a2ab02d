"""`rlrun init --data` on rows of a user, and the whole job that it describes."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.jobs import MAIN, Jobs
from tests.waiting import PATIENCE

SUMS = [(f"{number} + 1?", str(number + 1)) for number in range(40)]
SHORT: dict[str, object] = {
    "trainer__steps": 2,
    "rollout__batch_size": 4,
    "rollout__samples_per_prompt": 2,
    "rollout__max_prompt_tokens": 120,
    "rollout__max_response_tokens": 8,
    "checkpoint__interval": 2,
    "cluster__threads": 1,
}


def csv(folder: Path) -> Path:
    path = folder / "sums.csv"
    path.write_text("question,answer\n" + "".join(f"{question},{answer}\n" for question, answer in SUMS))
    return path


def chats(folder: Path) -> Path:
    path = folder / "chats.jsonl"
    turns = [(("user", question), ("assistant", answer)) for question, answer in SUMS]
    rows = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in turns]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize(
    "write",
    [pytest.param(csv, id="csv of sums"), pytest.param(chats, id="chats", marks=pytest.mark.slow)],
)
def test_a_job_from_init(jobs: Jobs, write: Callable[[Path], Path]) -> None:
    data = write(jobs.folder)
    name = data.stem
    options = ["init", f"{name}.toml", "--data", data.name, "--model", str(jobs.model), "--gpus", "0"]
    subprocess.run(
        [sys.executable, "-c", MAIN, *options],
        cwd=jobs.folder,
        check=True,
        timeout=PATIENCE,
        capture_output=True,
    )
    ended = jobs.run(name, spec=f"{name}.toml", **SHORT)
    assert ended.code == 0, ended.output
    assert [line["step"] for line in ended.metrics] == [0, 1, 2]
    assert "eval/held-out/reward" in ended.metrics[-1]
