"""What the Slurm launcher writes, and how it reads squeue."""

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.launchers.slurm import Slurm, SlurmParams, read_squeue
from rlrun.plugins.submission import Submission
from rlrun.plugins.testing import check_plugin

JOB = Submission(
    name="math",
    folder=Path("/home/u/my runs/.submitted/math"),
    working_folder=Path("/home/u"),
    python="/venv/bin/python",
    nodes=2,
    gpus=8,
    cpus=64,
)


def script(job: Submission = JOB, **params: Any) -> str:
    return Slurm(SlurmParams(**params)).files(job)["job.sbatch"]


def options(text: str) -> dict[str, str]:
    """The `#SBATCH` options of a script."""
    lines = [line.removeprefix("#SBATCH --") for line in text.splitlines() if line.startswith("#SBATCH ")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_the_contract_of_launchers() -> None:
    check_plugin("launchers", "slurm")


@pytest.mark.parametrize(
    ("changes", "params", "expected"),
    [
        ({}, {}, {"nodes": "2", "cpus-per-task": "64", "gpus-per-node": "8", "signal": "B:USR1@90"}),
        ({"stop_seconds": 600.0}, {}, {"signal": "B:USR1@630"}),
        ({"hours": 1.5, "memory_gb": 64.0}, {}, {"time": "90", "mem": "64000M"}),
        ({}, {"partition": "low", "account": "nlp"}, {"partition": "low", "account": "nlp"}),
        ({}, {"options": ("--qos=low",)}, {"qos": "low", "requeue": ""}),
        ({}, {}, {"output": "'/home/u/my runs/.submitted/math/output.txt'", "open-mode": "append"}),
    ],
)
def test_what_slurm_is_asked_for(
    changes: dict[str, Any], params: dict[str, Any], expected: dict[str, str]
) -> None:
    found = options(script(replace(JOB, **changes), **params))
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize("absent", ["time", "mem", "gpus-per-node", "partition", "account"])
def test_what_the_spec_leaves_open_is_the_sites(absent: str) -> None:
    assert absent not in options(script(replace(JOB, gpus=0)))


def test_the_script_is_valid_bash_and_prepares_before_it_runs(tmp_path: Path) -> None:
    """The attempt is replaced by a program that prints its arguments, as bash gives them."""
    show = tmp_path / "python"
    show.write_text('#!/bin/bash\nprintf "%s\\n" "A=$A" "$PREPARED" "$@"\n')
    show.chmod(0o755)
    job = replace(
        JOB,
        python=str(show),
        environment={"A": "it's $HOME"},
        setup=("PREPARED=$(echo yes); export PREPARED",),
    )
    environment = {"SLURM_JOB_ID": "7", "PATH": "/usr/bin:/bin"}
    run = subprocess.run(
        ["bash", "-c", script(job)], env=environment, capture_output=True, text=True, check=True
    )
    lines = run.stdout.splitlines()
    assert lines[:2] == ["A=it's $HOME", "yes"]
    assert lines[2:7] == ["-P", "-m", "rlrun", "attempt", "/home/u/my runs/.submitted/math"]
    assert "--id=7.0" in lines
    assert "--again=scontrol requeue $SLURM_JOB_ID" in lines
    [start] = [line for line in lines if line.startswith("--start-nodes=srun ")]
    assert start.endswith("--kill-on-bad-exit=0 bash '/home/u/my runs/.submitted/math/node.sh'")


def test_a_time_limit_that_leaves_no_time_is_refused() -> None:
    with pytest.raises(ValueError, match=r"submit\.hours = 0\.025 leaves no time to train"):
        script(replace(JOB, hours=0.025))


QUEUE = """6|RUNNING|None|n[1-2]|2026-11-26T20:00:00
7|PENDING|Priority||2026-11-27T08:00:00
8|PENDING|BeginTime||N/A
9|COMPLETING|None|n1|2026-11-26T20:00:00
"""


@pytest.mark.parametrize(
    ("id", "phase", "about"),
    [
        ("6", "running", "RUNNING on n[1-2]"),
        ("7", "waiting", "PENDING (Priority), expected to start at 2026-11-27T08:00:00"),
        ("8", "waiting", "PENDING (BeginTime)"),
        ("9", "running", "COMPLETING on n1"),
        ("1", "ended", "Slurm no longer lists it"),
    ],
)
def test_squeue_is_read(id: str, phase: str, about: str) -> None:
    state = read_squeue(QUEUE, id)
    assert (state.phase, state.about) == (phase, about)
