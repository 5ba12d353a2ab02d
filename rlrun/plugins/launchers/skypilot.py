"""Runs a job on clouds or Kubernetes with SkyPilot, as a managed job.

    sky jobs launch ─▶ task.yaml ─▶ machines ─▶ run.sh on each node
                          ▲            first node: rlrun attempt ─▶ rlrun launch --resume-if-exists
                          │            each node:  rlrun node (Ray), which ends with the attempt
                          └── exit code 69 or 75, or a machine is lost: new machines, the same task

SkyPilot runs the same script on every node, and tells it its number. The first node's attempt makes a folder
for itself on the shared volume; node.sh notes it in the file `nodes`, where the other nodes find it. SkyPilot
has a Ray of its own on its machines; `rlrun node` starts another one on a free port.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, ClassVar

import yaml
from pydantic import Field, field_validator

from rlrun.models.json_files import parse_json
from rlrun.plugins.launchers.commands import (
    attempt_words,
    call_tool,
    check_mounted,
    preparation,
    rlrun_command,
    secret_values,
)
from rlrun.plugins.submission import Phase, SchedulerError, Submission, SubmittedState
from rlrun.specs.sections.section import Section

_TASK, _RUN, _NODE, _NODES = "task.yaml", "run.sh", "node.sh", "nodes"
_AGAIN = (69, 75)
"""The exit codes of a launch that another one may continue (docs/running.md)."""
_LAUNCH_SECONDS = 1800.0
"""Deadline of `sky jobs launch`: the first job of a user starts a machine that watches all of them."""
_RUNNING = ("RUNNING", "CANCELLING")
_WAITING = ("PENDING", "SUBMITTED", "STARTING", "RECOVERING")
"""The other statuses of a managed job are final: SUCCEEDED, CANCELLED, FAILED, …"""
_JOB_ID = re.compile(r"(?:Managed Job ID|Job submitted, ID|ID): (\d+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class SkyPilotParams(Section):
    """What the job asks of SkyPilot, beside the keys that all launchers have."""

    mounts: dict[str, str] = Field(min_length=1)
    """SkyPilot's volumes that all nodes mount, by the path: `{"/shared" = "team-data"}`. `runs_dir` and the
    folder of `rlrun submit` must be below such a path, which is mounted where you submit, too."""
    accelerator: str | None = None
    """SkyPilot's name of the nodes' GPUs: `H100`. It is required on GPUs."""
    infra: str | None = None
    """Where to look for machines: `aws`, `gcp/us-central1`, `k8s`. None: wherever SkyPilot may."""
    spot: bool = False
    """Whether to take machines that may be taken back. The job continues on others from its newest
    checkpoint."""
    image: str | None = None
    """Image of a container, or of a machine, in SkyPilot's form: `docker:registry.example/rlrun:1`. None:
    SkyPilot's own, where `submit.setup` has to install rlrun."""
    resources: dict[str, Any] = Field(default_factory=dict)
    """Further keys of the task's `resources`, such as `disk_size` or `any_of`."""

    @field_validator("mounts")
    @classmethod
    def _check_mounts(cls, mounts: dict[str, str]) -> dict[str, str]:
        for path in mounts:
            if not Path(path).is_absolute():
                raise ValueError(f"{path!r} is not an absolute path of the nodes")
        return mounts


class SkyPilot:
    """Runs a managed job of SkyPilot on any cloud. It continues on new machines when it has lost its own."""

    Params = SkyPilotParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {"mounts": {"/work": "work"}, "accelerator": "H100"}

    def __init__(self, params: SkyPilotParams) -> None:
        self.params = params

    def files(self, job: Submission) -> dict[str, str]:
        """Returns the task, and the scripts of its nodes."""
        check_mounted(job, self.params.mounts, "nodes")
        if job.gpus and self.params.accelerator is None:
            raise ValueError("submit.accelerator has no value: name the nodes' GPUs as SkyPilot does (H100)")
        job = replace(job, python=job.python or "python3")
        scripts = {_RUN: self._run(job), _NODE: self._node(job)}
        return {
            _TASK: yaml.safe_dump(self._task(job), sort_keys=False, width=1000),
            **{name: "".join(f"{line}\n" for line in ("#!/bin/bash", *scripts[name])) for name in scripts},
        }

    def submit(self, job: Submission) -> str:
        """Launches the managed job, and returns its id. SkyPilot takes secrets from this environment."""
        secrets = [word for name in secret_values(job) for word in ("--secret", name)]
        words = ["sky", "jobs", "launch", "--yes", "--detach-run", *secrets, str(job.folder / _TASK)]
        return read_job_id(call_tool(words, seconds=_LAUNCH_SECONDS))

    def state(self, id: str, folder: Path) -> SubmittedState:
        """Asks for the user's managed jobs, which SkyPilot remembers after their end."""
        return read_queue(call_tool(["sky", "jobs", "queue", "--all", "--output=json"], seconds=300.0), id)

    def cancel(self, id: str, folder: Path) -> None:
        """Cancels the job, and ends its machines."""
        call_tool(["sky", "jobs", "cancel", "--yes", id], seconds=300.0)

    def output(self, folder: Path) -> Path:
        """Returns the file with what the job printed, over all attempts."""
        return folder / "output.txt"

    def _task(self, job: Submission) -> dict[str, Any]:
        params = self.params
        resources: dict[str, Any] = {"cpus": f"{job.cpus}+"}
        if job.memory_gb is not None:
            resources["memory"] = f"{ceil(job.memory_gb)}+"
        if job.gpus:
            resources["accelerators"] = f"{params.accelerator}:{job.gpus}"
        if params.infra is not None:
            resources["infra"] = params.infra
        if params.spot:
            resources["use_spot"] = True
        if params.image is not None:
            resources["image_id"] = params.image
        resources["job_recovery"] = {"recover_on_exit_codes": list(_AGAIN)}
        task: dict[str, Any] = {
            "name": f"rlrun-{job.name}",
            "num_nodes": job.nodes,
            "resources": resources | params.resources,
            "volumes": dict(params.mounts),
        }
        if job.environment:
            task["envs"] = dict(job.environment)
        if job.secrets:
            task["secrets"] = dict.fromkeys(job.secrets)
        if job.setup:
            task["setup"] = "\n".join(job.setup)
        return task | {"run": f"exec bash {_quoted(job.folder / _RUN)}"}

    def _run(self, job: Submission) -> Iterator[str]:
        attempt = [
            *attempt_words(job),
            '--id="$(date -u +%Y-%m-%dT%H:%M:%S)"',  # SkyPilot's own id stays the same
            f"--start-nodes={shlex.quote(f'bash {_quoted(job.folder / _NODE)}')}",
        ]
        node = ['node "$control"', '--rank="$SKYPILOT_NODE_RANK"', '--head="$head"', *_devices(job)]
        nodes = _quoted(job.folder / _NODES)
        yield f"exec >> {_quoted(self.output(job.folder))} 2>&1"
        yield f"cd {_quoted(job.working_folder)} || exit"
        yield from preparation(replace(job, setup=()))  # SkyPilot runs the set-up, and keeps its results
        yield 'head=$(head -n 1 <<< "$SKYPILOT_NODE_IPS")'
        yield 'if [ "$SKYPILOT_NODE_RANK" = 0 ]; then'
        yield f"rm -f {nodes}"
        yield f"exec {rlrun_command(job, *attempt)}"
        yield "fi"
        yield "# what an attempt on other machines has left names another head, or a folder that is gone"
        yield f"until read -r address control 2> /dev/null < {nodes} &&"
        yield '    [ "$address" = "$head" ] && [ -d "$control" ]; do sleep 1; done'
        yield rlrun_command(job, *node)
        yield "# SkyPilot ends the job at the first node that fails, and starts it again after this code only"
        yield f"[ $? = 0 ] || exit {_AGAIN[0]}"

    def _node(self, job: Submission) -> Iterator[str]:
        nodes = job.folder / _NODES
        unfinished = _quoted(nodes.with_suffix(".new"))
        words = ['node "$RLRUN_CONTROL"', "--rank=0", '--head="$head"', *_devices(job)]
        yield 'head=$(head -n 1 <<< "$SKYPILOT_NODE_IPS")'
        yield f"""printf '%s %s\\n' "$head" "$RLRUN_CONTROL" > {unfinished}"""
        yield f"mv {unfinished} {_quoted(nodes)}"
        yield f"exec {rlrun_command(job, *words)}"


def read_job_id(output: str) -> str:
    """Returns the id of a managed job from what `sky jobs launch` prints."""
    found = _JOB_ID.findall(_COLOURS.sub("", output))
    if not found:
        raise SchedulerError(f"sky jobs launch named no job: {output.strip()[-500:]}")
    return str(found[-1])


def read_queue(output: str, id: str) -> SubmittedState:
    """Returns the state of a job from the list of managed jobs, as JSON."""
    _, bracket, rest = output.partition("[")
    jobs = parse_json(bracket + rest) if bracket else None
    if not isinstance(jobs, list):
        raise SchedulerError("sky jobs queue answered with something that is not a list of jobs")
    job = next((job for job in jobs if isinstance(job, dict) and str(job.get("job_id")) == id), None)
    if job is None:
        return SubmittedState("ended", "SkyPilot does not list it")
    status = str(job.get("status"))
    phase: Phase = "running" if status in _RUNNING else "waiting" if status in _WAITING else "ended"
    recoveries = job.get("recovery_count")
    again = f", {recoveries} {'recovery' if recoveries == 1 else 'recoveries'}" if recoveries else ""
    reason = str(job.get("failure_reason") or "").partition("\n")[0]
    return SubmittedState(phase, f"{status}{again}{f': {reason}' if reason else ''}")


def _devices(job: Submission) -> list[str]:
    return [f"--cpus={job.cpus}", f"--gpus={job.gpus}"]


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
