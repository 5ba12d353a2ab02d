"""A stand-in for Kubernetes with KubeRay on this host: a `kubectl` whose RayJobs are real processes.

    kubectl create ─▶ RAYJOBS/NAME.json, and an operator: this module in the background, which repeats
                      start the head's `ray start` ─▶ run the entrypoint ─▶ end Ray
    kubectl get    ─▶ the status that the operator writes
    RAYJOBS/evict  ─▶ what Kubernetes does when it takes the head's pod: the preStop hook, then SIGTERM to Ray
    ray job stop   ─▶ SIGTERM to the entrypoint, whose job then counts as stopped

Statuses and retries follow `rayjob_controller.go` of KubeRay 1.7.
"""

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from rlrun.runner.cluster.ray_nodes import count_nodes
from rlrun.runner.host.atomic_files import write_json
from rlrun.runner.host.network import free_port

_HOST = "127.0.0.1"
_POLL_S = 0.1
_TOOL = '#!/bin/bash\nexec {python} -m tests.integration.kuberay {tool} "$@"\n'


def install_tools(folder: Path) -> dict[str, str]:
    """Writes `kubectl` and `ray` into a folder, and returns the variables with which they are found."""
    folder.mkdir()
    (folder / "rayjobs").mkdir()
    for tool in ("kubectl", "ray"):
        (folder / tool).write_text(_TOOL.format(python=shlex.quote(sys.executable), tool=tool))
        (folder / tool).chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "RAYJOBS": str(folder / "rayjobs")}


class Operator:
    """Runs one RayJob."""

    def __init__(self, name: str, manifest: dict[str, Any]) -> None:
        self._name = name
        self._spec = manifest["spec"]
        group = self._spec["rayClusterSpec"]["headGroupSpec"]
        [self._container] = group["template"]["spec"]["containers"]
        self._start = group["rayStartParams"]
        self._status: dict[str, Any] = {"failed": 0}

    def run(self) -> None:
        """Runs Ray clusters until the job has succeeded, was stopped, or has failed too often."""
        for attempt in range(self._spec["backoffLimit"] + 1):
            self._write(jobDeploymentStatus="Initializing", jobStatus="")
            job_status = self._run_cluster(f"{self._name}-{attempt}")
            if job_status != "FAILED":
                self._write(jobDeploymentStatus="Complete", jobStatus=job_status)
                return
            self._write(jobDeploymentStatus="Retrying", jobStatus="", failed=attempt + 1)
        self._write(jobDeploymentStatus="Failed", jobStatus="FAILED", reason="AppFailed")

    def _run_cluster(self, cluster: str) -> str:
        """Returns the status of the job of Ray."""
        variables = {each["name"]: each["value"] for each in self._container["env"]}
        environment = os.environ | variables | {"RAY_CLUSTER_NAME": cluster}
        port = free_port(_HOST)
        with tempfile.TemporaryDirectory(prefix="kr", dir="/tmp", ignore_cleanup_errors=True) as folder:
            start = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", f"--port={port}"]
            start += [f"--{key}={value}" for key, value in self._start.items()]
            start += [
                f"--node-ip-address={_HOST}",
                "--include-dashboard=false",
                f"--temp-dir={folder}",
                "--block",
            ]
            ray = subprocess.Popen(start, env=environment, start_new_session=True)
            try:
                while count_nodes(f"{_HOST}:{port}") < 1:
                    time.sleep(_POLL_S)
                self._write(jobDeploymentStatus="Running", jobStatus="RUNNING")
                return self._run_job(f"{cluster}-job", ray, environment | {"RAY_ADDRESS": f"{_HOST}:{port}"})
            finally:
                _end_session(ray)

    def _run_job(self, job: str, ray: "subprocess.Popen[bytes]", environment: dict[str, str]) -> str:
        metadata = json.dumps({"metadata": {"job_submission_id": job}})
        entrypoint = subprocess.Popen(
            ["bash", "-c", self._spec["entrypoint"]],
            env=environment | {"RAY_JOB_CONFIG_JSON_ENV_VAR": metadata},
        )
        evict, stop = _folder() / "evict", _folder() / f"{job}.stop"
        hook: subprocess.Popen[bytes] | None = None
        while entrypoint.poll() is None:
            if stop.exists():
                entrypoint.send_signal(signal.SIGTERM)
                entrypoint.wait()
                return "STOPPED"
            if evict.exists():
                evict.unlink()
                hook = subprocess.Popen(self._container["lifecycle"]["preStop"]["exec"]["command"])
            if hook is not None and hook.poll() is not None:
                ray.send_signal(signal.SIGTERM)
            time.sleep(_POLL_S)
        if hook is not None:
            assert hook.wait() == 0, "the hook did not see the attempt's end"
        return "SUCCEEDED" if entrypoint.returncode == 0 else "FAILED"

    def _write(self, **status: Any) -> None:
        self._status |= status
        write_json(_folder() / f"{self._name}.json", {"status": self._status})


def _end_session(leader: "subprocess.Popen[bytes]") -> None:
    """Ends what Ray started, as the end of a pod does."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == leader.pid:
                process.kill()
    leader.wait()


def _folder() -> Path:
    return Path(os.environ["RAYJOBS"])


def _kubectl(words: list[str]) -> None:
    options = {name: value for name, _, value in (word.partition("=") for word in words if "=" in word)}
    match words[0]:
        case "create":
            manifest = Path(options["--filename"])
            name = yaml.safe_load(manifest.read_text())["metadata"]["generateName"] + "x7k2p"
            write_json(_folder() / f"{name}.json", {})
            command = [sys.executable, "-m", "tests.integration.kuberay", "operator", name, str(manifest)]
            with (_folder() / "operator.log").open("a") as log:
                subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            print(f"rayjob.ray.io/{name}")
        case "get":
            print((_folder() / f"{words[2]}.json").read_text())
        case other:
            raise AssertionError(f"kubectl {other} is not needed here")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["kubectl", *words]:
            _kubectl(words)
        case ["ray", "job", "stop", *words]:
            (_folder() / f"{words[-1]}.stop").touch()
        case ["operator", name, manifest]:
            Operator(name, yaml.safe_load(Path(manifest).read_text())).run()
        case other:
            raise AssertionError(other)
