"""Runs a job on machines that are reached by ssh, and that no scheduler shares out.

    rlrun submit ─ssh▶ start.sh on the first host ─▶ job.sh, in the background
                                                       │  ▲
                        rlrun node, on every host ◀─┬──┘  └── exit code 69 or 75: the next attempt
                  (nodes.sh: by ssh on the others)  └▶ rlrun attempt ─▶ rlrun launch --resume-if-exists

Values of secrets go from one host to the next through the standard input of ssh, so that they are in no file
and in no list of processes.
"""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pydantic import Field

from rlrun.plugins.launchers.commands import (
    attempt_words,
    call_tool,
    preparation,
    rlrun_command,
    secret_values,
)
from rlrun.plugins.submission import Submission, SubmittedState
from rlrun.specs.sections.section import Section

_START, _JOB, _NODES, _NODE = "start.sh", "job.sh", "nodes.sh", "node.sh"
_OPTIONS = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
_READ_SECRETS = """while IFS= read -r -d '' variable; do export "$variable"; done"""
_RETRY_SECONDS = 5
"""Time between two tries to reach a host at the start of an attempt."""


class SshParams(Section):
    """The machines, and how to reach them."""

    hosts: tuple[str, ...] = Field(min_length=1)
    """One host for each of `cluster.nodes`, as ssh knows it: `node1`, `me@10.0.0.1`. The first one runs the
    job and must reach all others, without a password."""
    head: str | None = None
    """Address of the first host, as the others reach it. None: the address at which `rlrun submit` reached
    it."""
    options: tuple[str, ...] = ()
    """Further options of ssh, word by word: `["-p", "2222"]`. The first host uses them, too."""


class Ssh:
    """Starts a job on machines that ssh reaches, without a scheduler. It continues when a machine is back."""

    Params = SshParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {"hosts": ("node1", "node2")}

    def __init__(self, params: SshParams) -> None:
        self.params = params

    def files(self, job: Submission) -> dict[str, str]:
        """Returns the scripts of the first host, and the script of each node."""
        hosts = len(self.params.hosts)
        if hosts != job.nodes:
            raise ValueError(
                f"submit.hosts names {hosts} host{'' if hosts == 1 else 's'}, but cluster.nodes = {job.nodes}"
                f": set nodes = {hosts} under [cluster], or name one host for each node"
            )
        lines = {
            _START: self._start(job),
            _JOB: self._job(job),
            _NODES: self._nodes(job),
            _NODE: self._node(job),
        }
        return {name: "".join(f"{line}\n" for line in ("#!/bin/bash", *lines[name])) for name in lines}

    def submit(self, job: Submission) -> str:
        """Starts the job on the first host, and returns the id of its process there."""
        secrets = "".join(f"{name}={value}\0" for name, value in secret_values(job).items())
        return self._call(f"bash {_quoted(job.folder / _START)}", secrets)

    def state(self, id: str, folder: Path) -> SubmittedState:
        """Looks for the job's process on the first host."""
        host = self.params.hosts[0]
        if str(folder / _JOB) in self._call(f"ps -ww -o args= -p {shlex.quote(id)} || true"):
            return SubmittedState("running", f"process {id} on {host}")
        return SubmittedState("ended", f"process {id} no longer runs on {host}")

    def cancel(self, id: str, folder: Path) -> None:
        """Ends the job's processes on the first host; those on the others end with the attempt."""
        if self.state(id, folder).phase == "running":
            self._call(f"kill -- -{shlex.quote(id)}")

    def output(self, folder: Path) -> Path:
        """Returns the file with what the job printed, over all attempts."""
        return folder / "output.txt"

    def _call(self, command: str, given: str = "") -> str:
        """Runs a shell command on the first host."""
        return call_tool(["ssh", *_OPTIONS, *self.params.options, self.params.hosts[0], command], given)

    def _ssh(self, host: str, command: str) -> str:
        """Returns a shell command that runs one on another host."""
        return f"{shlex.join(['ssh', *_OPTIONS, *self.params.options, host])} {shlex.quote(command)}"

    def _start(self, job: Submission) -> Iterator[str]:
        yield _READ_SECRETS
        yield 'read -r _ _ address _ <<< "$SSH_CONNECTION"'
        yield f"export RLRUN_HEAD={'$address' if self.params.head is None else shlex.quote(self.params.head)}"
        for host in self.params.hosts[1:]:
            message = f"the first host cannot reach {host}, or {host} has no {job.folder}"
            yield f"{self._ssh(host, f'test -d {_quoted(job.folder)}')} < /dev/null || {{"
            yield f"    echo {shlex.quote(message)} >&2"
            yield "    exit 1"
            yield "}"
        output = _quoted(self.output(job.folder))
        yield f"setsid bash {_quoted(job.folder / _JOB)} >> {output} 2>&1 < /dev/null &"
        yield "echo $!"

    def _job(self, job: Submission) -> Iterator[str]:
        words = [
            *attempt_words(job),
            '--id="$$.$number"',
            f"--start-nodes={shlex.quote(f'bash {_quoted(job.folder / _NODES)}')}",
        ]
        yield f"cd {_quoted(job.working_folder)} || exit"
        yield from preparation(job)
        yield "ended="
        yield "trap 'ended=1' TERM"
        yield "for ((number = 0; ; number++)); do"
        yield rlrun_command(job, *words)
        yield "code=$?"
        yield 'if [ -n "$ended" ]; then exit $code; fi'
        yield "case $code in 69 | 75) ;; *) exit $code ;; esac"
        yield "done"

    def _nodes(self, job: Submission) -> Iterator[str]:
        values = " ".join(f'"{name}=${name}"' for name in job.secrets)
        yield "secrets() { " + (f"printf '%s\\0' {values}" if values else ":") + "; }"
        for rank, host in enumerate(self.params.hosts[1:], start=1):
            # a host that starts again is waited for, as long as the attempt does
            yield f"(until {self._ssh(host, 'true')} < /dev/null; do"
            yield f'    [ -d "$RLRUN_CONTROL" ] && sleep {_RETRY_SECONDS} || exit'
            yield "done"
            node = f"bash {_quoted(job.folder / _NODE)} {rank}"
            yield f'secrets | {self._ssh(host, node)}" ${{RLRUN_CONTROL@Q}} ${{RLRUN_HEAD@Q}}") &'
        yield f'bash {_quoted(job.folder / _NODE)} 0 "$RLRUN_CONTROL" "$RLRUN_HEAD" < /dev/null &'
        yield "wait"

    def _node(self, job: Submission) -> Iterator[str]:
        words = ['node "$2"', '--rank="$1"', '--head="$3"', f"--cpus={job.cpus}", f"--gpus={job.gpus}"]
        yield _READ_SECRETS
        yield f"cd {_quoted(job.working_folder)} || exit"
        yield from preparation(job)
        yield f"exec {rlrun_command(job, *words)}"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
