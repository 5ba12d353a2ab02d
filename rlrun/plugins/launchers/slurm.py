"""Runs a job with Slurm.

    sbatch ─▶ job.sbatch on the first node ─▶ rlrun attempt ─┬▶ srun: rlrun node, on every node (Ray)
                     ▲                                       └▶ rlrun launch --resume-if-exists
                     └── scontrol requeue ◀── saved, because of a preemption or the time limit

Which process gets which signal (seen with Slurm 22.05):

    time limit, `--signal=B:USR1@S`             SIGUSR1 to the batch script
    preemption, GraceTime > 0, at its start     SIGTERM to every process of the steps, and none to the script
    preemption, GraceTime = 0; scancel          SIGTERM to both, SIGKILL after KillWait

So the nodes tell the attempt of a SIGTERM (rlrun.runner.submission.node). An attempt that itself gets SIGTERM
is not queued again: Slurm requeues a preempted job by itself, and a user's scancel is meant to end it.
"""

import shlex
from collections.abc import Iterator
from math import ceil
from pathlib import Path

from rlrun.plugins.launchers.commands import (
    attempt_words,
    call_tool,
    preparation,
    rlrun_command,
    secret_values,
)
from rlrun.plugins.submission import Phase, Submission, SubmittedState
from rlrun.specs.sections.section import Section

_SCRIPT, _NODE = "job.sbatch", "node.sh"
_LEAD_SECONDS = 30
"""Time for the nodes to end after the job has saved. Slurm may send the signal a minute early."""
_WAITING = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SUSPENDED")
_FORMAT = "%T|%r|%N|%S"


class SlurmParams(Section):
    """What the job asks of Slurm, beside the keys that all launchers have."""

    partition: str | None = None
    """Partition of the job. None: the site's default."""
    account: str | None = None
    """Account that is charged for the job. None: the user's default."""
    options: tuple[str, ...] = ()
    """Further options of sbatch, each as it follows `#SBATCH`: `--qos=low`, `--exclusive`."""
    srun_options: tuple[str, ...] = ()
    """Further options of the srun that starts a process on each node, such as those of containers."""


class Slurm:
    """Queues a job with sbatch. It continues after a preemption, the loss of a node and its time limit."""

    Params = SlurmParams
    api_version = 1

    def __init__(self, params: SlurmParams) -> None:
        self.params = params

    def files(self, job: Submission) -> dict[str, str]:
        """Returns the batch script, and the script of each node."""
        lines = {_SCRIPT: [*self._header(job), *self._body(job)], _NODE: self._node(job)}
        return {name: "".join(f"{line}\n" for line in lines[name]) for name in lines}

    def submit(self, job: Submission) -> str:
        """Queues the script, and returns the job's id. sbatch passes this environment on to the job."""
        secret_values(job)
        return call_tool(["sbatch", "--parsable", str(job.folder / _SCRIPT)]).partition(";")[0]

    def state(self, id: str, folder: Path) -> SubmittedState:
        """Asks squeue, which forgets a job some minutes after its end."""
        return read_squeue(call_tool(["squeue", "--noheader", "--me", f"--format=%i|{_FORMAT}"]), id)

    def cancel(self, id: str, folder: Path) -> None:
        """Cancels the job, wherever it is."""
        call_tool(["scancel", id])

    def output(self, folder: Path) -> Path:
        """Returns the file with what the job printed, over all attempts."""
        return folder / "output.txt"

    def _header(self, job: Submission) -> Iterator[str]:
        lead = ceil(job.stop_seconds) + _LEAD_SECONDS
        if job.hours is not None and job.hours * 3600 <= lead:
            raise ValueError(
                f"submit.hours = {job.hours:g} leaves no time to train: the job is asked to save {lead} s "
                "before the end (checkpoint.stop_timeout and 30 s)"
            )
        options = {
            "job-name": job.name,
            "nodes": job.nodes,
            "ntasks-per-node": 1,
            "cpus-per-task": job.cpus,
            "gpus-per-node": job.gpus or None,
            "mem": None if job.memory_gb is None else f"{ceil(job.memory_gb * 1000)}M",
            "time": None if job.hours is None else ceil(job.hours * 60),
            "partition": self.params.partition,
            "account": self.params.account,
            "signal": f"B:USR1@{lead}",
            "open-mode": "append",
            "output": self.output(job.folder),
            "chdir": job.working_folder,
        }
        yield "#!/bin/bash"
        yield from (f"#SBATCH --{key}={shlex.quote(str(value))}" for key, value in options.items() if value)
        yield "#SBATCH --requeue"
        yield from (f"#SBATCH {option}" for option in self.params.options)

    def _body(self, job: Submission) -> Iterator[str]:
        srun = [
            "srun",
            f"--nodes={job.nodes}",
            f"--ntasks={job.nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={job.cpus}",
            "--overlap",  # else srun waits for cores that the batch script holds
            "--kill-on-bad-exit=0",
            *self.params.srun_options,
        ]
        start_nodes = f"{' '.join(srun)} bash {shlex.quote(str(job.folder / _NODE))}"
        words = [
            *attempt_words(job),
            '--id="$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}"',
            f"--start-nodes={shlex.quote(start_nodes)}",
            f"--again={shlex.quote('scontrol requeue $SLURM_JOB_ID')}",
        ]
        yield from preparation(job)
        yield f"exec {rlrun_command(job, *words)}"

    def _node(self, job: Submission) -> Iterator[str]:
        words = [
            'node "$RLRUN_CONTROL"',
            '--rank="$SLURM_PROCID"',
            '--head="$SLURM_LAUNCH_NODE_IPADDR"',  # srun runs on the first node
            f"--cpus={job.cpus}",
            f"--gpus={job.gpus}",
        ]
        yield "#!/bin/bash"
        yield f"exec {rlrun_command(job, *words)}"


def read_squeue(output: str, id: str) -> SubmittedState:
    """Returns the state of a job from squeue's lines `id|state|reason|nodes|start`."""
    for line in output.splitlines():
        number, state, reason, nodes, start = (line.split("|") + [""] * 5)[:5]
        if number != id:
            continue
        phase: Phase = "waiting" if state in _WAITING else "running"
        if phase == "running":
            return SubmittedState(phase, f"{state} on {nodes}" if nodes else state)
        begins = f", expected to start at {start}" if start not in ("", "N/A") else ""
        return SubmittedState(phase, f"{state} ({reason}){begins}")
    return SubmittedState("ended", "Slurm no longer lists it")
