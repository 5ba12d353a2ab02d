"""GRPO from spec to learning curve, several ways that must give one and the same curve.

Two jobs at a time, where each has to start anew: a start leaves half of two cores idle.
"""

import json
import signal

import psutil
import pytest
import torch
import zstandard

from rlrun.runner.kernels.operators import in_order, load
from rlrun.runner.storage.manifest import manifest_key
from tests.integration.jobs import MAIN, Ended, Jobs
from tests.waiting import PATIENCE

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

LISTS_MODULES = "import atexit, sys; atexit.register(lambda: print('modules:', *sys.modules))\n"
"""Shows what a command has imported when it ends."""

DIFFERENCE = 0.0 if load() and in_order(torch.float32) else 1e-4
"""Of the log-probs of engine and trainer, at most: none where both compute with the same operators."""


def test_the_policy_learns(reference: Ended) -> None:
    assert reference.code == 0, reference.output
    rewards = [line["rollout/reward/mean"] for line in reference.metrics]
    assert rewards[0] < 0.3
    assert rewards[-1] > 0.7


def test_engine_and_trainer_agree_after_every_weight_sync(reference: Ended) -> None:
    for line in reference.metrics:
        assert line["train/approx_kl"] == 0.0
        assert line["train/train_rollout_logprob_abs_diff_max"] <= DIFFERENCE
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


def test_the_same_spec_gives_the_same_run_killed_and_resumed_or_not(jobs: Jobs, reference: Ended) -> None:
    """It is resumed as on another machine, which has nothing but the mirror of its checkpoints."""
    bucket = jobs.folder / "bucket"
    mirrored = {"checkpoint__mirror": f"file://{bucket}"}
    hold = jobs.folder / "hold"
    hold.touch()
    jobs.environment["HOLD"] = str(hold)
    killed = jobs.start("killed", **mirrored)
    killed.until_step(5)  # the reward holds the job in its sixth step; the last checkpoint is of the fourth
    killed.until((bucket / "killed" / manifest_key(4)).exists, "the upload of the fourth step")
    orphans = [psutil.Process(killed.pid(name)) for name in ("trainer 0", "engine 0")]
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    hold.unlink()
    assert not psutil.wait_procs(orphans, timeout=PATIENCE)[1]
    killed.folder.path.rename(jobs.folder / "lost")
    resumed = jobs.run("killed", "--resume-if-exists", **mirrored)
    assert resumed.code == 0, resumed.output
    assert f"restoring step 4 from file://{bucket}/killed" in resumed.output
    assert f"step 12 is in file://{bucket}/killed" in resumed.output
    assert resumed.curve == reference.curve
    assert resumed.metrics[-1]["perf/upload_failures"] == 0
    refused = jobs.run("killed", "--runs-dir", "elsewhere", **mirrored)
    assert refused.code == 2 and "has step 12 of a run: continue it (--resume)" in refused.output


@pytest.fixture(scope="module")
def apart_and_streaming(jobs: Jobs) -> tuple[Ended, Ended]:
    """One whose engine has a core of its own, that evaluates on the way and exports its model; and one that
    asks for more samples than it needs.
    """
    dataset = {
        "name": "held_out",
        "path": str(jobs.folder / "rows.jsonl"),
        "samples_per_prompt": 1,
        "temperature": 0.0,
    }
    surplus = {
        "deterministic": False,
        "rollout__oversample": 12,
        "filters": [{"type": "nonzero_std", "keep_when_short": True}],
        "trainer__steps": 4,
    }
    apart = jobs.start(
        "apart",
        main=LISTS_MODULES + MAIN,
        cluster__placement="disaggregated",
        eval={"interval": 3, "datasets": [dataset]},
        checkpoint__export_hf=True,
        trainer__steps=4,
    )
    streaming = jobs.start("streaming", **surplus)
    return apart.wait(), streaming.wait()


def test_disaggregated_gives_the_same_metrics_as_colocated(
    apart_and_streaming: tuple[Ended, Ended], reference: Ended
) -> None:
    apart, _ = apart_and_streaming
    assert apart.code == 0, apart.output
    steps = [line for line in apart.curve if line["step"]]
    without = [{name: value for name, value in line.items() if "eval/" not in name} for line in steps]
    assert without == reference.curve[:4]


def test_evaluation_and_export(apart_and_streaming: tuple[Ended, Ended]) -> None:
    ended, _ = apart_and_streaming
    assert [line["step"] for line in ended.metrics if "eval/held_out/reward" in line] == [0, 3, 4]
    from transformers import AutoModelForCausalLM

    assert AutoModelForCausalLM.from_pretrained(ended.folder.model).config.vocab_size == 320


def test_the_driver_never_imports_torch(apart_and_streaming: tuple[Ended, Ended]) -> None:
    ended, _ = apart_and_streaming
    imported = ended.output.rpartition("modules:")[2].split()
    assert "transformers" in imported
    assert "torch" not in imported


def test_a_job_that_streams_aborts_its_surplus_and_stays_on_policy(
    apart_and_streaming: tuple[Ended, Ended],
) -> None:
    _, ended = apart_and_streaming
    assert ended.code == 0, ended.output
    for line in ended.metrics:
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4
        assert line["rollout/staleness/max"] == 0
        assert line["rollout/failed"] == 0
        assert line["perf/peak_memory/engine"] > 0


@pytest.mark.slow  # tests/integration/test_sglang_job.py trains on two ranks
@pytest.mark.parametrize("kind", ["fsdp", "pipeline"])
def test_two_ranks_train_as_one(jobs: Jobs, reference: Ended, kind: str) -> None:
    sharded = jobs.run(f"two-{kind}", trainer__parallel={kind: 2}, trainer__steps=3)
    assert sharded.code == 0, sharded.output
    assert len(sharded.metrics) == 3
    for one, two in zip(reference.metrics, sharded.metrics, strict=False):
        assert two["rollout/reward/mean"] == pytest.approx(one["rollout/reward/mean"], abs=0.1)
        assert two["train/train_rollout_logprob_abs_diff_max"] <= DIFFERENCE


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
