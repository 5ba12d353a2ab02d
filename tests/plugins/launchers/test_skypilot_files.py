"""What the SkyPilot launcher writes, and how it reads SkyPilot's answers.

SKYPILOT_PYTHON may name an interpreter with the package skypilot: its own parser then reads the tasks, too.
"""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from rlrun.plugins.launchers.skypilot import SkyPilot, SkyPilotParams, read_job_id, read_queue
from rlrun.plugins.submission import SchedulerError, Submission
from rlrun.plugins.testing import check_plugin

JOB = Submission(
    name="math",
    folder=Path("/shared/my runs/.submitted/math"),
    working_folder=Path("/shared/work"),
    nodes=3,
    gpus=8,
    cpus=64,
)
PARAMS: dict[str, Any] = {"mounts": {"/shared": "team"}, "accelerator": "H100"}
EVERYTHING = replace(
    JOB,
    memory_gb=511.5,
    environment={"NCCL_DEBUG": "WARN"},
    secrets=("WANDB_API_KEY",),
    setup=("pip install rlrun[run]", "nvidia-smi"),
)
ALL_PARAMS = {"infra": "k8s", "spot": True, "image": "docker:reg/rlrun:1", "resources": {"disk_size": 500}}
PARSE = """
import sys, yaml
from sky import task
config = yaml.safe_load(sys.stdin)
secrets = [(name, "value") for name in config.get("secrets", {})]
task.Task.from_yaml_config(config, secrets_overrides=secrets)
"""


def files(job: Submission = JOB, **params: Any) -> dict[str, str]:
    return SkyPilot(SkyPilotParams(**(PARAMS | params))).files(job)


def task(job: Submission = JOB, **params: Any) -> dict[str, Any]:
    return yaml.safe_load(files(job, **params)["task.yaml"])  # type: ignore[no-any-return]


def test_the_contract_of_launchers() -> None:
    check_plugin("launchers", "skypilot")


def test_a_task_asks_for_the_nodes_of_the_plan_and_recovers_from_what_is_worth_it() -> None:
    assert task() == {
        "name": "rlrun-math",
        "num_nodes": 3,
        "resources": {
            "cpus": "64+",
            "accelerators": "H100:8",
            "job_recovery": {"recover_on_exit_codes": [69, 75]},
        },
        "volumes": {"/shared": "team"},
        "run": "exec bash '/shared/my runs/.submitted/math/run.sh'",
    }


def test_a_task_has_what_the_spec_asks_for_and_no_value_of_a_secret() -> None:
    whole = task(EVERYTHING, **ALL_PARAMS)
    assert whole["envs"] == {"NCCL_DEBUG": "WARN"}
    assert whole["secrets"] == {"WANDB_API_KEY": None}
    assert whole["setup"] == "pip install rlrun[run]\nnvidia-smi"
    assert (
        whole["resources"]
        | {
            "memory": "512+",
            "infra": "k8s",
            "use_spot": True,
            "image_id": "docker:reg/rlrun:1",
            "disk_size": 500,
        }
        == whole["resources"]
    )


@pytest.mark.skipif(
    "SKYPILOT_PYTHON" not in os.environ, reason="SKYPILOT_PYTHON names no Python with skypilot"
)
@pytest.mark.parametrize("job", [JOB, EVERYTHING], ids=["least", "everything"])
def test_skypilots_own_parser_takes_the_task(job: Submission, tmp_path: Path) -> None:
    text = files(job, **(ALL_PARAMS if job is EVERYTHING else {}))["task.yaml"]
    parsed = subprocess.run(
        [os.environ["SKYPILOT_PYTHON"], "-c", PARSE],
        input=text,
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert parsed.returncode == 0, parsed.stderr


@pytest.mark.parametrize("name", ["run.sh", "node.sh"])
def test_the_scripts_are_bash(name: str) -> None:
    text = files(EVERYTHING)[name]
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False).returncode == 0
    assert "pip install" not in text  # SkyPilot runs the set-up once for each machine


@pytest.mark.parametrize(
    ("job", "params", "message"),
    [
        (replace(JOB, working_folder=Path("/home/me")), {}, "/home/me is below no path of submit.mounts"),
        (JOB, {"accelerator": None}, "submit.accelerator has no value"),
    ],
)
def test_a_job_that_the_nodes_could_not_run_is_refused(
    job: Submission, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        files(job, **params)


def test_mounts_are_absolute() -> None:
    with pytest.raises(ValidationError, match="'shared' is not an absolute path"):
        SkyPilotParams(mounts={"shared": "team"})


def test_the_id_is_read_beside_what_else_is_printed() -> None:
    assert (
        read_job_id("Job submitted, ID: \x1b[1m12\x1b[0m\n\n📋 Useful Commands\nManaged Job ID: 12\n") == "12"
    )
    with pytest.raises(SchedulerError, match="named no job: no credentials"):
        read_job_id("no credentials")


@pytest.mark.parametrize(
    ("job", "phase", "about"),
    [
        ({"status": "PENDING"}, "waiting", "PENDING"),
        ({"status": "RECOVERING", "recovery_count": 1}, "waiting", "RECOVERING, 1 recovery"),
        ({"status": "RUNNING", "recovery_count": 2}, "running", "RUNNING, 2 recoveries"),
        ({"status": "FAILED", "failure_reason": "code 3\nmore"}, "ended", "FAILED: code 3"),
        (None, "ended", "SkyPilot does not list it"),
    ],
)
def test_the_state_is_read_from_the_list_of_jobs(job: dict[str, Any] | None, phase: str, about: str) -> None:
    listed = [{"job_id": 1, "status": "SUCCEEDED"}, *([] if job is None else [{"job_id": 7, **job}])]
    state = read_queue(f"a hint\n{json.dumps(listed)}", "7")
    assert (state.phase, state.about) == (phase, about)


def test_other_answers_are_errors() -> None:
    with pytest.raises(SchedulerError, match="not a list of jobs"):
        read_queue("{}", "1")
