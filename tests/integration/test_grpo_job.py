"""GRPO from spec to learning curve, several ways that must give one and the same curve."""

import json
import signal

import psutil
import pytest
import zstandard

from tests.integration.jobs import Ended, Jobs

SFT = """
[rollout]
max_prompt_tokens = 64
max_response_tokens = 16

[algorithm]
type = "sft"

[trainer]
steps = 6
lr = 3e-3
dtype = "float32"
global_batch_size = 8
"""


@pytest.fixture(scope="module")
def reference(jobs: Jobs) -> Ended:
    """The uninterrupted, colocated job."""
    return jobs.run("reference")


def test_the_policy_learns(reference: Ended) -> None:
    assert reference.code == 0, reference.output
    rewards = [line["rollout/reward/mean"] for line in reference.metrics]
    assert rewards[0] < 0.3
    assert rewards[-1] > 0.7


def test_engine_and_trainer_agree_after_every_weight_sync(reference: Ended) -> None:
    for line in reference.metrics:
        assert line["train/approx_kl"] == 0.0
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4
        assert line["rollout/staleness/max"] == 0


def test_a_run_leaves_what_its_folder_promises(reference: Ended) -> None:
    folder = reference.folder
    assert folder.spec.read_text() == (folder.path.parents[1] / "job.toml").read_text()
    lock = json.loads(folder.lock.read_text())
    assert lock["versions"]["torch"]
    assert len(lock["model"]["sha256"]) == 64
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == ["step-12", "step-8"]
    assert {path.name for path in folder.logs.iterdir()} >= {"driver.log", "trainer-0.log", "engine-0.log"}
    samples = zstandard.decompress((folder.rollouts / "step-12.jsonl.zst").read_bytes()).splitlines()
    assert json.loads(samples[0])["reward"] > 0
    assert folder.curve.read_bytes().startswith(b"\x89PNG")
    state = folder.read_state()
    assert (state["status"], state["step"], state["steps"]) == ("done", 12, 12)


def test_the_same_spec_twice_gives_the_same_run(jobs: Jobs, reference: Ended) -> None:
    assert jobs.run("again").curve == reference.curve


def test_disaggregated_gives_the_same_metrics_as_colocated(jobs: Jobs, reference: Ended) -> None:
    assert jobs.run("apart", cluster__placement="disaggregated").curve == reference.curve


def test_a_killed_run_goes_on_as_if_it_had_not_been(jobs: Jobs) -> None:
    hold = jobs.folder / "hold"
    hold.touch()
    jobs.environment["HOLD"] = str(hold)
    rewards = [{"type": "held"}]
    whole = jobs.start("whole", rewards=rewards)
    killed = jobs.start("killed", rewards=rewards)
    killed.until_step(5)  # the reward holds the job in its sixth step; the last checkpoint is of the fourth
    orphans = [psutil.Process(killed.pid(name)) for name in ("trainer 0", "engine 0")]
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    hold.unlink()
    assert not psutil.wait_procs(orphans, timeout=30)[1]
    resumed = jobs.run("killed", "--resume", rewards=rewards)
    assert resumed.code == 0, resumed.output
    uninterrupted = whole.wait()
    assert resumed.curve == uninterrupted.curve
    aside = resumed.folder.superseded / "1"
    assert json.loads((aside / "metrics.jsonl").read_text())["step"] == 5


def test_a_job_that_streams_aborts_its_surplus_and_stays_on_policy(jobs: Jobs) -> None:
    ended = jobs.run(
        "streaming",
        deterministic=False,
        rollout__oversample=12,
        filters=[{"type": "nonzero_std", "keep_when_short": True}],
        trainer__steps=4,
    )
    assert ended.code == 0, ended.output
    for line in ended.metrics:
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4
        assert line["rollout/staleness/max"] == 0
        assert line["rollout/failed"] == 0
        assert line["perf/peak_memory/engine"] > 0


@pytest.mark.parametrize("kind", ["fsdp", "pipeline"])
def test_two_ranks_train_as_one(kind: str, jobs: Jobs, reference: Ended) -> None:
    sharded = jobs.run(f"two-{kind}", trainer__parallel={kind: 2}, trainer__steps=3)
    assert sharded.code == 0, sharded.output
    for one, two in zip(reference.metrics, sharded.metrics, strict=False):
        assert two["rollout/reward/mean"] == pytest.approx(one["rollout/reward/mean"], abs=0.05)
        assert two["train/train_rollout_logprob_abs_diff"] < 1e-4


def test_evaluation_and_export(jobs: Jobs) -> None:
    dataset = {
        "name": "held_out",
        "path": str(jobs.folder / "rows.jsonl"),
        "samples_per_prompt": 1,
        "temperature": 0.0,
    }
    ended = jobs.run(
        "evaluated", eval={"interval": 2, "datasets": [dataset]}, checkpoint__export_hf=True, trainer__steps=3
    )
    assert ended.code == 0, ended.output
    assert [line["step"] for line in ended.metrics if "eval/held_out/reward" in line] == [0, 2, 3]
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(ended.folder.model).config.vocab_size == 320


def test_demonstrations_are_learnt_without_engines(jobs: Jobs) -> None:
    rows = jobs.folder / "demonstrations.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"say {i}", "answer": "yes"}) + "\n" for i in range(32)))
    head = (jobs.folder / "job.toml").read_text().partition("[rollout]")[0]
    keys = 'path = "demonstrations.jsonl"\nlabel_key = "answer"\nresponse_key = "answer"'
    (jobs.folder / "sft.toml").write_text(head.replace('path = "rows.jsonl"', keys) + SFT)
    ended = jobs.run("sft", spec="sft.toml")
    assert ended.code == 0, ended.output
    losses = [line["train/loss"] for line in ended.metrics]
    assert losses[-1] < losses[0] / 2
    assert not list(ended.folder.logs.glob("engine-*"))
