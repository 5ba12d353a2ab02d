"""What the ssh launcher writes, run with programs that show what they were given."""

import os
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import ValidationError

from rlrun.plugins.launchers.ssh import Ssh, SshParams
from rlrun.plugins.submission import SchedulerError, Submission
from rlrun.plugins.testing import check_plugin
from tests.waiting import wait_for_ends

HOSTS = ("n1", "me@n2")
SSH = """
host=${@: -2:1}
echo "$host ${@:1:$#-2} | ${@: -1}" >> calls
SSH_CONNECTION="10.0.0.9 1 10.0.0.1 22" exec bash -c "${@: -1}"
"""
"""An ssh that runs the command here."""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Submission:
    """A job whose folder has a space; its rlrun is a program that shows its arguments and some variables."""
    folder = tmp_path / "my runs"
    folder.mkdir()
    programs = {"ssh": SSH, "python": 'printf "%s\\n" "A=$A KEY=$KEY" "$@" "head $RLRUN_HEAD"\nexit $CODE'}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    return Submission(
        name="math",
        folder=folder,
        working_folder=tmp_path,
        nodes=2,
        gpus=8,
        cpus=64,
        python=str(tmp_path / "python"),
        environment={"A": "it's $HOME"},
        secrets=("KEY",),
        setup=("SET_UP=yes",),
    )


def launcher(**params: Any) -> Ssh:
    return Ssh(SshParams(**({"hosts": HOSTS} | params)))


def write(job: Submission, **params: Any) -> None:
    for name, text in launcher(**params).files(job).items():
        (job.folder / name).write_text(text)


def run(job: Submission, script: str, environment: Mapping[str, str]) -> str:
    """What a script of the job prints."""
    done = subprocess.run(
        ["bash", str(job.folder / script)],
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def wait_for_end(id: str) -> None:
    """Waits until a process that was started in the background has ended."""
    with suppress(psutil.NoSuchProcess):
        wait_for_ends([psutil.Process(int(id))])


def test_the_contract_of_launchers() -> None:
    check_plugin("launchers", "ssh", {"hosts": HOSTS})


def test_a_job_is_started_on_the_first_host_with_its_secrets(
    job: Submission, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "a secret\nof two lines")
    monkeypatch.setenv("CODE", "0")
    write(job, options=("-p", "2222"))
    id = launcher(options=("-p", "2222")).submit(job)
    output = job.folder / "output.txt"
    wait_for_end(id)
    lines = output.read_text().splitlines()
    assert lines[:2] == ["A=it's $HOME KEY=a secret", "of two lines"]
    assert lines[2:7] == ["-P", "-m", "rlrun", "attempt", str(job.folder)]
    assert f"--id={id}.0" in lines
    assert f"--start-nodes=bash '{job.folder}/nodes.sh'" in lines
    assert lines[-1] == "head 10.0.0.1"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == [
        f"n1 -o BatchMode=yes -o ConnectTimeout=20 -p 2222 | bash '{job.folder}/start.sh'",
        f"me@n2 -o BatchMode=yes -o ConnectTimeout=20 -p 2222 | test -d '{job.folder}'",
    ]
    assert not any("two lines" in path.read_text() for path in job.folder.glob("*.sh"))


def test_a_host_that_the_first_one_cannot_use_is_named(job: Submission, tmp_path: Path) -> None:
    write(job)
    (tmp_path / "ssh").write_text('#!/bin/bash\n[ "${@: -2:1}" = n1 ] && exec bash -c "${@: -1}"\nexit 255\n')
    with pytest.raises(SchedulerError, match="the first host cannot reach me@n2, or me@n2 has no /"):
        launcher().submit(replace(job, secrets=()))


def test_secrets_that_are_not_set_here_are_named(job: Submission) -> None:
    with pytest.raises(ValueError, match="not set in this environment: KEY"):
        launcher().submit(job)


@pytest.mark.parametrize(
    ("code", "attempts"),
    [(0, ["0"]), (3, ["0"]), (130, ["0"]), (75, ["0", "1", "2"]), (69, ["0", "1", "2"])],
)
def test_an_attempt_follows_another_one_by_its_exit_code(
    job: Submission, tmp_path: Path, code: int, attempts: list[str]
) -> None:
    """The third attempt ends with 3."""
    write(job)
    ends = f'case "$*" in *.2\\ *) exit 3 ;; *) exit {code} ;; esac'
    shows = 'for word; do case $word in --id=*) echo "$word" ;; esac; done'
    (tmp_path / "python").write_text(f"#!/bin/bash\n{shows}\n{ends}\n")
    lines = run(job, "job.sh", {}).splitlines()
    assert [line.rpartition(".")[2] for line in lines] == attempts


def test_the_nodes_are_numbered_and_get_the_secrets(job: Submission, tmp_path: Path) -> None:
    write(job)
    control = tmp_path / "the control"
    control.mkdir()
    environment = {"KEY": "a secret", "RLRUN_CONTROL": str(control), "RLRUN_HEAD": "10.0.0.1", "CODE": "0"}
    printed = run(job, "nodes.sh", environment)
    for rank in (0, 1):
        assert f"node\n{control}\n--rank={rank}\n--head=10.0.0.1\n--cpus=64\n--gpus=8\n" in printed
    assert printed.count("A=it's $HOME KEY=a secret\n") == 2
    assert [line.partition(" ")[0] for line in (tmp_path / "calls").read_text().splitlines()] == ["me@n2"] * 2


def test_a_host_that_never_answers_is_given_up_with_the_attempt(job: Submission, tmp_path: Path) -> None:
    write(job)
    (tmp_path / "ssh").write_text("#!/bin/bash\nexit 255\n")
    environment = {"KEY": "", "RLRUN_CONTROL": str(tmp_path / "gone"), "RLRUN_HEAD": "10.0.0.1", "CODE": "0"}
    assert "--rank=1" not in run(job, "nodes.sh", environment)


@pytest.mark.parametrize(("head", "expected"), [(None, "10.0.0.1"), ("10.5.0.1", "10.5.0.1")])
def test_the_address_of_the_first_host(job: Submission, head: str | None, expected: str) -> None:
    write(replace(job, nodes=1), hosts=("n1",), head=head)
    environment = {"SSH_CONNECTION": "10.0.0.9 1 10.0.0.1 22", "CODE": "0"}
    id = run(job, "start.sh", environment).strip()
    wait_for_end(id)
    assert (job.folder / "output.txt").read_text().splitlines()[-1] == f"head {expected}"


def test_a_job_runs_until_its_process_is_gone_and_is_cancelled(job: Submission, tmp_path: Path) -> None:
    write(job)
    (tmp_path / "python").write_text("#!/bin/bash\nexec sleep 3600\n")
    job = replace(job, secrets=())
    ssh = launcher()
    id = ssh.submit(job)
    assert ssh.state(id, job.folder).phase == "running"
    ssh.cancel(id, job.folder)
    wait_for_end(id)
    state = ssh.state(id, job.folder)
    assert (state.phase, state.about) == ("ended", f"process {id} no longer runs on n1")
    ssh.cancel(id, job.folder)  # another process may have the number by now


def test_hosts_must_be_as_many_as_nodes(job: Submission) -> None:
    with pytest.raises(ValueError, match=r"submit\.hosts names 2 hosts, but cluster\.nodes = 3"):
        launcher().files(replace(job, nodes=3))
    with pytest.raises(ValidationError, match="at least 1 item"):
        SshParams(hosts=())
