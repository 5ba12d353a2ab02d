"""Runs a job on Kubernetes, as a RayJob of KubeRay.

    kubectl create ─▶ RayJob ─▶ KubeRay starts Ray in a pod for each node, then on the head job.sh:
                        ▲           rlrun attempt --address ─▶ rlrun launch --resume-if-exists
                        └── the job of Ray failed: a new Ray cluster, as often as backoffLimit says

KubeRay has no rule for exit codes (seen in the source of 1.7): it repeats each job that failed, and none that
succeeded or was stopped. job.sh therefore lets Ray's job fail if another attempt is worth it, and stops it if
the run itself failed or was stopped.

When a pod is deleted (preemption, drained node, Kueue, `kubectl delete`), its first process gets the signal,
which is Ray, and not the driver. Before that Kubernetes runs the preStop hook, and waits for it as long as
terminationGracePeriodSeconds: `rlrun release` asks the attempt to save, and returns when it has ended.
"""

import json
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
from rlrun.plugins.launchers.commands import attempt_words, call_tool, check_mounted, rlrun_command
from rlrun.plugins.submission import Phase, SchedulerError, Submission, SubmittedState
from rlrun.specs.sections.section import Section

_MANIFEST, _SCRIPT = "rayjob.yaml", "job.sh"
_RESOURCE = "rayjobs.ray.io"
_LEAD_SECONDS = 30
"""Time for what follows when the job has saved: the end of its processes, and of Ray's job."""
_RETRIES = 100
"""New Ray clusters for a job, at most. `submit.idle_attempts` ends it earlier if it makes no progress."""
_NAME_LENGTH = 41
"""KubeRay takes names of 47 characters, 6 of which Kubernetes adds."""
_OWN = ("containers", "volumes", "restartPolicy", "terminationGracePeriodSeconds")
_REPLICAS = ("replicas", "minReplicas", "maxReplicas")
_JOB_ID = (
    "import json, os; "
    'print(json.loads(os.environ["RAY_JOB_CONFIG_JSON_ENV_VAR"])["metadata"]["job_submission_id"])'
)
"""Python that prints Ray's name of the job that it is a part of."""
_PHASES: dict[str, Phase] = {
    "Running": "running",
    "Complete": "ended",
    "Failed": "ended",
    "ValidationFailed": "ended",
}
"""The phase of each jobDeploymentStatus; a job in any other one waits for its pods."""


class KubeRayParams(Section):
    """What the pods are made of."""

    image: str
    """Image of the pods, with rlrun, `ray[default]` and wget."""
    mounts: dict[str, str] = Field(min_length=1)
    """What is mounted into each pod, by the path: a persistent volume claim, or a path of the node. Example:
    `{"/shared" = "team-data"}`. `runs_dir` and the folder of `rlrun submit` must be below such a path."""
    namespace: str | None = None
    """Namespace of the job. None: that of kubectl's context."""
    secret: str | None = None
    """Name of the Kubernetes secret with the values of `submit.secrets`, by the names of the variables."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels of the RayJob. Example: `{"kueue.x-k8s.io/queue-name" = "training"}`."""
    pod: dict[str, Any] = Field(default_factory=dict)
    """Further fields of each pod's `spec`, such as `nodeSelector`, `tolerations`, `priorityClassName`."""

    @field_validator("mounts")
    @classmethod
    def _check_mounts(cls, mounts: dict[str, str]) -> dict[str, str]:
        for path in mounts:
            if not Path(path).is_absolute():
                raise ValueError(f"{path!r} is not an absolute path of the pods")
        return mounts

    @field_validator("pod")
    @classmethod
    def _check_pod(cls, pod: dict[str, Any]) -> dict[str, Any]:
        if own := [name for name in _OWN if name in pod]:
            raise ValueError(f"rlrun sets {', '.join(own)} itself")
        return pod


class KubeRay:
    """Runs a job on Kubernetes, as a RayJob of KubeRay. It continues after preemptions and lost nodes."""

    Params = KubeRayParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {"image": "registry.example/rlrun:1", "mounts": {"/work": "work"}}

    def __init__(self, params: KubeRayParams) -> None:
        self.params = params

    def files(self, job: Submission) -> dict[str, str]:
        """Returns the RayJob, and the script that Ray runs on its head."""
        check_mounted(job, self.params.mounts, "pods")
        if job.secrets and self.params.secret is None:
            raise ValueError(
                f"submit.secret has no value: name the Kubernetes secret with {', '.join(job.secrets)}"
            )
        job = replace(job, python=job.python or "python3")
        # copied by way of JSON: what occurs twice would be written as an alias, which people rarely read
        rayjob = json.loads(json.dumps(self._rayjob(job)))
        manifest = yaml.safe_dump(rayjob, sort_keys=False, width=1000)
        return {_MANIFEST: manifest, _SCRIPT: "".join(f"{line}\n" for line in self._script(job))}

    def submit(self, job: Submission) -> str:
        """Creates the RayJob, and returns the name that Kubernetes has completed."""
        created = self._kubectl("create", f"--filename={job.folder / _MANIFEST}", "--output=name")
        return created.rpartition("/")[2]

    def state(self, id: str, folder: Path) -> SubmittedState:
        """Asks for the RayJob, which stays when the job has ended, until somebody deletes it."""
        return read_rayjob(self._kubectl("get", _RESOURCE, id, "--ignore-not-found", "--output=json"))

    def cancel(self, id: str, folder: Path) -> None:
        """Deletes the RayJob with its pods, which are given the time to save."""
        self._kubectl("delete", _RESOURCE, id, "--ignore-not-found", "--wait=false")

    def output(self, folder: Path) -> Path:
        """Returns the file with what the job printed, over all attempts."""
        return folder / "output.txt"

    def _kubectl(self, *words: str) -> str:
        namespace = self.params.namespace
        return call_tool(["kubectl", *([] if namespace is None else [f"--namespace={namespace}"]), *words])

    def _rayjob(self, job: Submission) -> dict[str, Any]:
        ray = {"num-cpus": str(job.cpus), "num-gpus": str(job.gpus)}
        workers = {"groupName": "workers", **dict.fromkeys(_REPLICAS, job.nodes - 1)}
        group = {"rayStartParams": ray, "template": {"spec": self._pod(job)}}
        submitter = {"name": "ray-job-submitter", "image": self.params.image}
        return {
            "apiVersion": "ray.io/v1",
            "kind": "RayJob",
            "metadata": {
                "generateName": f"{_dns_name(job.name)}-",
                **({"labels": self.params.labels} if self.params.labels else {}),
            },
            "spec": {
                "entrypoint": f"bash {shlex.quote(str(job.folder / _SCRIPT))}",
                "backoffLimit": _RETRIES,
                # a second submission of the same attempt would find the run locked
                "submitterConfig": {"backoffLimit": 0},
                "submitterPodTemplate": {
                    "spec": {"restartPolicy": "Never", "containers": [submitter], **self.params.pod}
                },
                "shutdownAfterJobFinishes": True,
                "rayClusterSpec": {
                    # the oldest version that rlrun takes, and the first one with tokens
                    "rayVersion": "2.52.0",
                    "authOptions": {"mode": "token"},
                    "headGroupSpec": group,
                    **({"workerGroupSpecs": [workers | group]} if job.nodes > 1 else {}),
                },
            },
        }

    def _pod(self, job: Submission) -> dict[str, Any]:
        grace = _grace_seconds(job)
        release = [str(job.python), "-P", "-m", "rlrun", "release", str(job.folder), f"--seconds={grace}"]
        resources = {"cpu": str(job.cpus)}
        if job.memory_gb is not None:
            resources["memory"] = f"{ceil(job.memory_gb * 1000)}M"
        if job.gpus:
            resources["nvidia.com/gpu"] = str(job.gpus)
        volumes = {"shared-memory": ("/dev/shm", {"emptyDir": {"medium": "Memory"}})}
        for number, (path, source) in enumerate(self.params.mounts.items()):
            volumes[f"mount-{number}"] = (path, _volume(source))
        return {
            # the seconds that the hook waits, and those in which Ray ends
            "terminationGracePeriodSeconds": grace + _LEAD_SECONDS,
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "ray",
                    "image": self.params.image,
                    "env": self._variables(job),
                    "resources": {"requests": resources, "limits": dict(resources)},
                    "lifecycle": {"preStop": {"exec": {"command": release}}},
                    "volumeMounts": [
                        {"name": name, "mountPath": path} for name, (path, _) in volumes.items()
                    ],
                }
            ],
            "volumes": [{"name": name, **source} for name, (_, source) in volumes.items()],
            **self.params.pod,
        }

    def _variables(self, job: Submission) -> list[dict[str, Any]]:
        plain = {
            **job.ray_variables,
            # Ray gives a job 3 s between SIGTERM and SIGKILL when the RayJob is deleted
            "RAY_JOB_STOP_WAIT_TIME_S": str(_grace_seconds(job)),
            **job.environment,
        }
        secret = self.params.secret
        return [
            *({"name": name, "value": value} for name, value in plain.items()),
            *(
                {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name}}}
                for name in job.secrets
            ),
        ]

    def _script(self, job: Submission) -> Iterator[str]:
        words = [
            *attempt_words(job),
            '--id="$RAY_CLUSTER_NAME"',
            '--address="$RAY_ADDRESS"',
            f"--grace={_grace_seconds(job)}",
        ]
        yield "#!/bin/bash"
        yield f"exec >> {shlex.quote(str(self.output(job.folder)))} 2>&1"
        yield f"cd {shlex.quote(str(job.working_folder))} || exit"
        yield rlrun_command(job, *words)
        yield "code=$?"
        yield "case $code in 0 | 69 | 75) exit $code ;; esac"
        yield "# KubeRay repeats a job that failed, whatever its exit code, and not one that was stopped."
        yield f"job=$({shlex.quote(str(job.python))} -P -c {shlex.quote(_JOB_ID)})"
        yield 'ray job stop --address=http://127.0.0.1:8265 --no-wait "$job" && sleep 60'
        yield "exit $code"


def _grace_seconds(job: Submission) -> int:
    """Returns how long an attempt may take to save and end, when a pod is taken."""
    return ceil(job.stop_seconds) + _LEAD_SECONDS


def _volume(source: str) -> dict[str, Any]:
    if source.startswith("/"):
        return {"hostPath": {"path": source, "type": "Directory"}}
    return {"persistentVolumeClaim": {"claimName": source}}


def _dns_name(name: str) -> str:
    """Returns the name of a run with the characters that Kubernetes takes; it begins with a letter."""
    plain = re.sub(r"[^a-z0-9]+", "-", f"rlrun-{name.lower()}")
    return plain[:_NAME_LENGTH].strip("-")


def read_rayjob(text: str) -> SubmittedState:
    """Returns the state of a job from what kubectl says of its RayJob; nothing if there is none."""
    if not text:
        return SubmittedState("ended", "Kubernetes no longer has it")
    rayjob = parse_json(text)
    status = rayjob.get("status", {}) if isinstance(rayjob, dict) else None
    if not isinstance(status, dict):
        raise SchedulerError("kubectl answered with something that is not a RayJob")
    deployment = str(status.get("jobDeploymentStatus") or "not yet seen by KubeRay")
    phase = _PHASES.get(deployment, "waiting")
    reasons = [str(status[key]) for key in ("jobStatus", "reason") if status.get(key)]
    if phase == "ended" and status.get("message"):
        reasons.append(str(status["message"]).partition("\n")[0])
    failed = f", {status['failed']} failed" if status.get("failed") else ""
    about = f"{deployment} ({', '.join(reasons)}){failed}" if reasons else f"{deployment}{failed}"
    return SubmittedState(phase, about)
