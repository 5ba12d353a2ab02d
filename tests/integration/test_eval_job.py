"""`rlrun eval`: the samples and figures of a job's evaluation, without its trainer, and after a kill."""

import signal
from typing import Any

import pytest

from rlrun.runner.records.saved_rollouts import read_groups, rollout_path
from tests.integration.jobs import MAIN, Ended, Jobs

HELD_OUT = {"name": "held", "type": "jsonl", "path": "rows.jsonl", "samples_per_prompt": 2}
OWN = {
    "name": "own",
    "type": "jsonl",
    "path": "rows.jsonl@[:8]",
    "samples_per_prompt": 2,
    "top_k": 1,
    "min_response_tokens": 6,
    "rewards": [{"type": "length", "max_tokens": 16, "buffer": 4}, {"type": "short", "weight": 0.5}],
    "function": {"type": "two_turns"},
}
"""Its answers are the likeliest ones, in two turns of 6 tokens with 4 tokens between. Its rewards are -1
for 16 tokens, and half of 0."""
BLOCK = "import rlrun.runner.rollouts.evaluation as e; e.BLOCK_SAMPLES = 16\n"
"""Blocks of 8 prompts, unless more samples run at once."""
SETTINGS: dict[str, Any] = {
    "engine__max_running": 4,
    "rollout__batch_size": 2,
    "trainer__steps": 1,
    "eval__datasets": [HELD_OUT, OWN],
}


def samples(job: Ended) -> list[tuple[Any, ...]]:
    return [
        (one.id, one.tokens.tolist(), one.log_probs.tolist(), one.reward)
        for group in read_groups(rollout_path(job.folder.rollouts, 0, "eval"))
        for one in group.samples
    ]


def figures(job: Ended) -> dict[str, Any]:
    return {name: value for name, value in job.curve[0].items() if name.startswith("eval/")}


@pytest.fixture(scope="module")
def trained(jobs: Jobs) -> Ended:
    """The job whose evaluation the others repeat."""
    ended = jobs.run("trained", main=BLOCK + MAIN, debug__save_rollouts=True, **SETTINGS)
    assert ended.code == 0, ended.output
    return ended


def check(alone: Ended, trained: Ended) -> None:
    assert alone.code == 0, alone.output
    assert samples(alone) == samples(trained)
    assert figures(alone) == figures(trained)
    assert [line["step"] for line in alone.metrics] == [0]
    pairs = samples(alone)[-16:]  # the second dataset
    assert {(len(tokens), reward) for _, tokens, _, reward in pairs} == {(16, -1.0)}
    assert all(first[1] == second[1] for first, second in zip(pairs[::2], pairs[1::2], strict=True))
    assert not alone.folder.evaluated.exists()
    assert "(" in alone.output and "held: reward" in alone.output


def test_an_evaluation_alone_is_that_of_the_job(jobs: Jobs, trained: Ended) -> None:
    check(jobs.start("alone", main=BLOCK + MAIN, word="eval", **SETTINGS).wait(), trained)


@pytest.mark.slow
def test_a_killed_evaluation_continues(jobs: Jobs, trained: Ended) -> None:
    hold = jobs.folder / "hold"
    hold.touch()
    jobs.environment["HOLD"] = str(hold)  # rewards wait from prompt 40 on
    running = jobs.start("killed", main=BLOCK + MAIN, word="eval", **SETTINGS)
    evaluated = running.folder.evaluated
    running.until(lambda: evaluated.exists() and evaluated.read_bytes().count(b"\n") >= 8, "a block")
    running.signal(signal.SIGKILL)
    running.wait()
    num_kept = evaluated.read_bytes().count(b"\n")
    hold.unlink()

    alone = jobs.start("killed", "--resume", main=BLOCK + MAIN, word="eval", **SETTINGS).wait()
    assert f"continues with the {2 * num_kept} samples that are finished" in alone.output
    assert 8 <= num_kept < 64
    check(alone, trained)
