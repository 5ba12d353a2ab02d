"""Trainer ranks that die or hang while a job runs: the job continues from its last checkpoint."""

import signal
import subprocess
from pathlib import Path

import pytest
import torch

from rlrun.runner.checkpoints.folder import checkpoints_in
from rlrun.specs.local_code import ALLOW_LOCAL
from tests import drawing_algorithm
from tests.converters.conversions import convert, read_hf, same
from tests.fault.conftest import STEPS
from tests.fault.ids import check_each_once, trained_ids
from tests.fault.moments import Fault, main_with
from tests.fault.test_ends import assert_nothing_left
from tests.integration.jobs import Ended, Jobs
from tests.tiny_models import make_tiny_model

ASYNC = {"deterministic": False, "rollout__mode": "async", "cluster__placement": "disaggregated"}


def check(job: Ended, went_on_from: list[int]) -> None:
    """Every step counts once; the trainer was started again from these steps."""
    assert job.code == 0, job.output
    assert [line["step"] for line in job.metrics] == list(range(1, STEPS + 1))
    back = [line for line in job.output.splitlines() if "the trainer is back after" in line]
    assert [int(line.rpartition(" ")[2]) for line in back] == went_on_from
    check_each_once(job)
    print("\n".join(back))


def test_ranks_that_die_or_hang_change_nothing_that_is_learnt(jobs: Jobs, reference: Ended) -> None:
    faults = [
        Fault("trainer 0", "training", 3),  # there is no checkpoint yet
        Fault("trainer 0", "training", 9),  # the sixth step of the second attempt; the fourth is saved
        Fault("trainer 0", "writing weights", 15, hangs=True),
    ]
    settings = {"trainer__steps": STEPS, "fault_tolerance__trainer_timeout": 10.0}
    running = jobs.start("trainer-killed", main=main_with(faults), **settings)
    running.until_step(1)
    processes = running.children()
    ended = running.wait()
    check(ended, went_on_from=[0, 4, 8])
    assert "trainer 0 hangs: 'ping' did not end within 10 s; its process is stopped (SIGSTOP)" in ended.output
    assert ended.curve == reference.curve
    assert_nothing_left(processes, ended)


ADAPTERS = {"trainer__lora": {"rank": 4, "alpha": 8.0}}
HALF = {"trainer__dtype": "bfloat16", "engine__dtype": "bfloat16"}
FORMS = {
    "adapters": ADAPTERS,
    "nf4": {"model__path": "wide", "trainer__lora": {"rank": 4, "alpha": 8.0, "base": "nf4"}},
    "adamw_8bit": {"trainer__optimizer": "adamw_8bit"},
    "float8": HALF | {"trainer__precision": "float8"},
    "int4_qat": HALF | {"trainer__precision": "int4_qat", "checkpoint__export_hf": True},
    "drawing": {"algorithm__type": f"{drawing_algorithm.__file__}:Drawing"},
}
"""Jobs whose checkpoints have other tensors than float32 parameters and two moments, or other products, and
a plugin whose loss draws random numbers."""


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_training_resumes_after_a_kill_bit_for_bit(form: str, jobs: Jobs) -> None:
    settings = {"trainer__steps": STEPS} | FORMS[form]
    if form == "nf4":  # blocks of 64 values
        make_tiny_model(jobs.folder / "wide", intermediate_size=128)
    jobs.environment[ALLOW_LOCAL] = "1"
    undisturbed = jobs.run(form, **settings)
    assert undisturbed.code == 0, undisturbed.output
    running = jobs.start(f"{form}-killed", **settings)
    running.until_step(6)
    running.signal(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    resumed = jobs.run(f"{form}-killed", "--resume", **settings)
    assert resumed.code == 0, resumed.output
    assert resumed.curve == undisturbed.curve
    if form == "int4_qat":
        check_exports(resumed, undisturbed, jobs.folder)


def check_exports(resumed: Ended, undisturbed: Ended, folder: Path) -> None:
    """The exported model, its converted checkpoint and its packed form in INT4 have the same numbers."""
    exported = read_hf(resumed.folder.model)
    assert same(exported, read_hf(undisturbed.folder.model))
    packed = convert(resumed.folder.model, "hf", folder / "packed", quantise="int4-group")
    back = convert(packed, "hf", folder / "unpacked", dequantise=True, dtype=torch.float32)
    converted = convert(resumed.folder.path, "hf", folder / "converted", dtype=torch.float32)
    assert all(torch.equal(tensor, exported[name].float()) for name, tensor in read_hf(back).items())
    assert all(torch.equal(tensor, exported[name].float()) for name, tensor in read_hf(converted).items())


@pytest.mark.slow
def test_one_rank_of_two_dying_has_both_started_again(jobs: Jobs, reference: Ended) -> None:
    faults = [Fault("trainer 1", "training", 6)]
    settings = {"trainer__steps": STEPS, "trainer__parallel": {"fsdp": 2}}
    ended = jobs.run("rank-killed", main=main_with(faults), **settings)
    check(ended, went_on_from=[4])
    assert "trainer 1 died" in ended.output
    assert trained_ids(ended) == trained_ids(reference)


@pytest.mark.slow
def test_groups_under_way_are_asked_again_and_none_is_trained_on_twice(jobs: Jobs) -> None:
    faults = [Fault("trainer 0", "training", 7)]
    ended = jobs.run("async-killed", main=main_with(faults), trainer__steps=STEPS, **ASYNC)
    check(ended, went_on_from=[4])
    assert max(line["rollout/staleness/max"] for line in ended.metrics) <= 1


@pytest.mark.slow
def test_a_job_ends_with_one_error_when_its_restarts_are_spent(jobs: Jobs) -> None:
    faults = [Fault("trainer 0", "training", 2), Fault("trainer 0", "training", 3)]
    settings = {"trainer__steps": STEPS, "fault_tolerance__trainer_restarts": 1}
    ended = jobs.run("trainer-spent", main=main_with(faults), **settings)
    assert ended.code == 3
    [failed] = [line for line in ended.output.splitlines() if line.startswith("failed:")]
    assert failed.startswith("failed: trainer 0 died: ")
    assert failed.endswith("no restart is left (fault_tolerance.trainer_restarts = 1)")
    assert "Traceback" not in ended.output


@pytest.mark.slow
def test_a_crash_that_repeats_is_named_and_not_tried_again(jobs: Jobs) -> None:
    faults = [Fault("trainer 0", "training", call, number=signal.SIGILL) for call in (3, 6)]  # step 3, twice
    settings = {"trainer__steps": STEPS, "fault_tolerance__trainer_restarts": 5}
    ended = jobs.run("crash-repeats", main=main_with(faults), **settings)
    assert ended.code == 3
    [failed] = [line for line in ended.output.splitlines() if line.startswith("failed:")]
    assert "trainer 0 died: its process crashed: SIGILL (Illegal instruction)" in failed
    assert "at the same place before" in failed
    assert ended.output.count("starting the trainer again") == 1


def test_checkpoints_that_are_unfinished_or_damaged_do_not_count_and_strays_are_left_alone(
    joining_jobs: Jobs, reference: Ended
) -> None:
    """The driver is killed while the third checkpoint is written, and a bit of the second one flips."""
    settings = {"trainer__steps": STEPS, "checkpoint__asynchronous": True}
    faults = [Fault("driver", "writing a checkpoint", 3)]
    running = joining_jobs.start("writing-killed", main=main_with(faults), **settings)
    running.until_step(1)
    checkpoints = running.folder.checkpoints
    strays = [
        checkpoints / "step-2.bak",
        checkpoints / "step-02",
        running.folder.rollouts / "step-x.jsonl.zst",
    ]
    for stray in strays:
        stray.mkdir()
        (stray / "driver.json").write_text("mine")
    killed = running.wait()
    assert killed.code == -signal.SIGKILL, killed.output
    assert list(checkpoints_in(checkpoints)) == [4, 8]
    lines = killed.folder.metrics.read_text().splitlines(keepends=True)
    killed.folder.metrics.write_text("".join([*lines[:3], '{"step": 3,,\n', *lines[3:]]))

    weights = checkpoints / "step-8" / "trainer" / "__0_0.distcp"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.write_bytes(data)
    refused = joining_jobs.run("writing-killed", "--resume", **settings)
    assert refused.code == 2
    assert refused.folder.read_state() == killed.folder.read_state()
    [failed] = [line for line in refused.output.splitlines() if line.startswith("error:")]
    assert f"{weights.relative_to(joining_jobs.folder)} is damaged: its checksum is not the one" in failed
    assert "--resume continues from step 4, the one before" in failed
    assert "Traceback" not in refused.output
    assert "continues from step 8" not in refused.output

    subprocess.run(failed[failed.index("mv ") :], shell=True, check=True)  # as it says
    resumed = joining_jobs.run("writing-killed", "--resume", **settings)
    assert resumed.code == 0, resumed.output
    assert "metrics.jsonl:4 does not hold the metrics of a step: moved to" in resumed.output
    assert resumed.curve == reference.curve
    assert list(checkpoints_in(checkpoints)) == [8, 12]
    assert all((stray / "driver.json").read_text() == "mine" for stray in strays)


@pytest.mark.slow
def test_kills_while_saving_loading_and_exporting_change_nothing_that_is_learnt(
    jobs: Jobs, reference: Ended
) -> None:
    launches = [
        [Fault("trainer 0", "saving", 1), Fault("driver", "saving", 3)],  # step 4, taken twice; step 8
        [Fault("trainer 0", "checking a checkpoint", 1), Fault("driver", "loading", 1)],
        [Fault("trainer 0", "loading", 1), Fault("driver", "saving", 2)],  # step 8, again; step 12
        [Fault("trainer 0", "exporting", 1), Fault("driver", "exporting", 2)],
    ]
    settings = {"trainer__steps": STEPS, "checkpoint__export_hf": True}
    resume: list[str] = []
    for faults in launches:
        killed = jobs.run("killed-again", *resume, main=main_with(faults), **settings)
        assert killed.code == -signal.SIGKILL, killed.output
        assert killed.output.count("starting the trainer again") == 1
        resume = ["--resume"]
    ended = jobs.run("killed-again", "--resume", **settings)
    assert ended.code == 0, ended.output
    assert ended.curve == reference.curve
    assert (ended.folder.model / "model.safetensors").is_file()
    assert not [path for path in ended.folder.path.iterdir() if path.name.startswith(".model")]
    assert sorted(path.name for path in ended.folder.checkpoints.iterdir()) == ["step-12", "step-8"]
