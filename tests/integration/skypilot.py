"""A stand-in for SkyPilot on this host: a `sky` whose managed jobs are real processes.

    sky jobs launch ─▶ JOBS/ID.json, and a controller: this module in the background, which repeats
                       run the task's `run` once for each node ─▶ end what is left of the nodes
    sky jobs queue  ─▶ the statuses that the controllers write
    JOBS/evict      ─▶ the machines of all nodes vanish

Statuses and recoveries follow `sky/jobs/controller.py` of SkyPilot 0.14.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import yaml

from rlrun.runner.host.atomic_files import write_json

_HOST = "127.0.0.1"
_POLL_S = 0.1
_TOOL = '#!/bin/bash\nexec {python} -m tests.integration.skypilot "$@"\n'


def install_tool(folder: Path) -> dict[str, str]:
    """Writes `sky` into a folder, and returns the variables with which it is found."""
    folder.mkdir()
    (folder / "skyjobs").mkdir()
    (folder / "sky").write_text(_TOOL.format(python=shlex.quote(sys.executable)))
    (folder / "sky").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "SKYJOBS": str(folder / "skyjobs")}


class Controller:
    """Runs one managed job."""

    def __init__(self, id: int, task: dict[str, Any]) -> None:
        self._id = id
        self._task = task
        self._status: dict[str, Any] = {"job_id": id, "recovery_count": 0}

    def run(self) -> None:
        """Runs the task on new machines until it ends with a code that is not recovered."""
        recovered = self._task["resources"]["job_recovery"]["recover_on_exit_codes"]
        self._write(status="STARTING")
        while (code := self._run_task()) is None or code in recovered:
            self._write(status="RECOVERING", recovery_count=self._status["recovery_count"] + 1)
        self._write(status="SUCCEEDED" if code == 0 else "FAILED")

    def _run_task(self) -> int | None:
        """Returns the exit code of the first node that failed, or 0; None if the machines vanished."""
        self._write(status="RUNNING")
        nodes = [self._start_node(rank) for rank in range(self._task["num_nodes"])]
        evict = _folder() / "evict"
        try:
            while True:
                codes = [node.poll() for node in nodes]
                if failed := [code for code in codes if code]:
                    return failed[0]
                if None not in codes:
                    return 0
                if evict.exists():
                    evict.unlink()
                    return None
                time.sleep(_POLL_S)
        finally:
            for node in nodes:
                _end_machine(node)

    def _start_node(self, rank: int) -> "subprocess.Popen[bytes]":
        ips = "\n".join([_HOST] * self._task["num_nodes"])
        variables = {"SKYPILOT_NODE_RANK": str(rank), "SKYPILOT_NODE_IPS": ips} | self._task.get("envs", {})
        return subprocess.Popen(
            ["bash", "-c", self._task["run"]], env=os.environ | variables, stdin=subprocess.DEVNULL
        )

    def _write(self, **status: Any) -> None:
        self._status |= status
        write_json(_folder() / f"{self._id}.json", self._status)


def _end_machine(node: "subprocess.Popen[bytes]") -> None:
    """Kills everything that runs on a node, as the end of a machine does."""
    with suppress(psutil.NoSuchProcess):
        for process in [*psutil.Process(node.pid).children(recursive=True), psutil.Process(node.pid)]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    node.wait()


def _folder() -> Path:
    return Path(os.environ["SKYJOBS"])


def _launch(task: Path) -> None:
    id = 1 + len(list(_folder().glob("*.json")))
    write_json(_folder() / f"{id}.json", {"job_id": id, "status": "PENDING"})
    with (_folder() / "controller.log").open("a") as log:
        command = [sys.executable, "-m", "tests.integration.skypilot", "controller", str(id), str(task)]
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    print(f"Job submitted, ID: {id}\n\n📋 Useful Commands\nManaged Job ID: {id}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["jobs", "launch", "--yes", "--detach-run", *_, task]:
            _launch(Path(task))
        case ["jobs", "queue", "--all", "--output=json"]:
            print(json.dumps([json.loads(file.read_text()) for file in sorted(_folder().glob("*.json"))]))
        case ["controller", id, task]:
            Controller(int(id), yaml.safe_load(Path(task).read_text())).run()
        case other:
            raise AssertionError(f"sky {other} is not needed here")
