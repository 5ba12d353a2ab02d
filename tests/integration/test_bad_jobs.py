"""What a user gets wrong: a clear message, the right exit code, nothing lost."""

import socket

import pytest

from tests.integration.jobs import ROLLOUT_ONLY, Jobs


def test_a_reward_that_raises_ends_the_job_by_name(jobs: Jobs) -> None:
    broken = jobs.run("broken", rewards=[{"type": "broken"}], **ROLLOUT_ONLY)
    assert broken.code == 3
    assert "reward 'broken'" in broken.output
    assert "no score for" in broken.output


@pytest.mark.slow
def test_a_rollout_whose_samples_are_all_dropped_ends_the_job(jobs: Jobs) -> None:
    settings = ROLLOUT_ONLY | {"scoring": {"timeout": 0.3, "on_error": "drop"}}
    settings |= {"rollout__batch_size": 1, "rollout__max_attempts": 1}
    stuck = jobs.run("stuck", rewards=[{"type": "stuck"}], **settings)
    assert stuck.code == 3
    assert "the rollout starved: of 1 groups tried 0 were kept" in stuck.output
    assert "4 samples failed" in stuck.output or "1 by generation (failed)" in stuck.output


def test_a_port_in_use_is_named(jobs: Jobs) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ended = jobs.run("port", engine__port=port, **ROLLOUT_ONLY)
    assert ended.code == 3
    assert f"engine 0 failed: the engine cannot listen on port {port}" in ended.output


def test_more_gpus_than_there_are(jobs: Jobs) -> None:
    ended = jobs.run(
        "gpus", cluster__gpus_per_node=64, trainer__parallel={"fsdp": 64}, rollout__batch_size=16
    )
    assert ended.code == 3
    assert "the spec asks for 64 GPUs" in ended.output
    assert not list(ended.folder.logs.glob("trainer-*"))


def test_broken_data_ends_the_job_before_it_starts(jobs: Jobs) -> None:
    rows = jobs.folder / "broken.jsonl"
    rows.write_text('{"prompt": "a", "label": "b"}\n' * 9 + '{"prompt": \n')
    ended = jobs.run("data", data__path=str(rows))
    assert ended.code == 3
    assert "data.max_bad_share" in ended.output
    assert "broken.jsonl:10" in ended.output


def test_a_name_in_use_is_refused(jobs: Jobs) -> None:
    (jobs.folder / "runs" / "mine").mkdir(parents=True)
    ended = jobs.run("mine")
    assert ended.code == 2
    assert "--resume" in ended.output
