"""A Ray cluster of two nodes on this host, each with an address and a network of its own.

    network of the head      bridge 10.77.0.1    Ray's head, the driver
    network of the second    eth0 10.77.0.2      Ray's second node, with process ids and /dev/shm of its own

Files are shared, as on a cluster with a network file system. The second node dies as a machine does: all its
processes end at once, and nothing answers at its address any more.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import wait_until

HEAD, SECOND = "10.77.0.1", "10.77.0.2"
PORT = 6399
_STARTED = "Ray runtime started."
_HOLD = "exec sleep infinity"
_NEW_HEAD = ["unshare", "--map-root-user", "--net"]
_NEW_SECOND = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
_QUICK_CHECKS = {
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_worker_niceness": "0",
    "RAY_enable_worker_prestart": "0",
}
"""Ray finds a dead node within seconds instead of half a minute."""


def can_make_networks() -> bool:
    """Whether this user may create networks: that needs iproute2, and namespaces for users."""
    if not all(map(shutil.which, ("ip", "ss", "unshare", "nsenter"))):
        return False
    tried = [*_NEW_HEAD, "ip", "link", "add", "br0", "type", "bridge"]
    return subprocess.run(tried, capture_output=True, check=False).returncode == 0


class TwoNodes:
    """The cluster. Its networks vanish with their last process, after `stop`."""

    address = f"{HEAD}:{PORT}"

    def __init__(self) -> None:
        """Starts the network and the head of the Ray cluster."""
        self._files = Path(tempfile.mkdtemp(prefix="rl", dir="/tmp"))  # Ray's sockets need a short path
        self._started: list[subprocess.Popen[bytes]] = []
        bridge = "ip link set lo up && ip link add br0 type bridge && ip link set br0 up"
        hold = f"{bridge} && ip addr add {HEAD}/24 dev br0 && {_HOLD}"
        self._head = self._start([*_NEW_HEAD, "sh", "-c", hold])
        wait_until(lambda: self._runs(HEAD_ADDRESS), "the network of the head")
        files = ["--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={self._files}"]
        self._start([*self.enter, *_ray(HEAD, *files)])
        wait_until(lambda: _STARTED in self.log, "Ray's head")

    @property
    def log(self) -> str:
        """What Ray has printed on both nodes."""
        return (self._files / "nodes.log").read_text()

    @property
    def enter(self) -> list[str]:
        """The beginning of a command that runs on the head, where drivers run."""
        return _enter(self._head.pid, "--net")

    @property
    def enter_second(self) -> list[str]:
        """The beginning of a command that a process of the head runs in the second node's network."""
        return ["nsenter", "-t", str(self._second), "--net"]

    def start_second(self, cpus: int = 2) -> None:
        """Starts the second node with so many cores, and returns when it belongs to the cluster."""
        hold = f"mount -t tmpfs none /dev/shm && mount -t tmpfs none {self._files} && {_HOLD}"
        second = self._start([*self.enter, *_NEW_SECOND, "sh", "-c", hold])
        wait_until(lambda: _is_held(second.pid), "the namespaces of the second node")
        self._second = _first_child(second.pid)
        self._runs("ip link del second")
        self._runs(f"ip link add second type veth peer name eth0 netns {self._second}")
        self._runs("ip link set second master br0 up")
        inside = _enter(self._second, "--net", "--mount", "--pid")
        network = f"ip link set lo up && ip addr add {SECOND}/24 dev eth0 && ip link set eth0 up"
        subprocess.run([*inside, "sh", "-c", network], check=True)
        before = self.log.count(_STARTED)
        self._start([*inside, *_ray(SECOND, f"--address={self.address}", cpus=cpus)])
        wait_until(lambda: self.log.count(_STARTED) > before, "Ray's second node")

    def kill_second(self) -> None:
        """Ends every process of the second node at once: they go with their namespace's first process."""
        psutil.Process(self._second).kill()

    def listening_on_head(self) -> dict[int, set[str]]:
        """Returns the addresses at which each process of the head's network listens, by process id."""
        command = [*self.enter, "ss", "--no-header", "--listening", "--tcp", "--processes", "--numeric"]
        listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        addresses: dict[int, set[str]] = {}
        for line in listed.splitlines():
            address = line.split()[3].rsplit(":", 1)[0]
            for pid in re.findall(r"pid=(\d+)", line):
                addresses.setdefault(int(pid), set()).add(address)
        return addresses

    def stop(self) -> None:
        """Ends every process of the cluster."""
        for process in reversed(self._started):
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()
            process.wait()
        shutil.rmtree(self._files, ignore_errors=True)

    def _start(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        environment = os.environ | _QUICK_CHECKS
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # Ray refuses GPUs that it leaves out
        with (self._files / "nodes.log").open("ab") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, start_new_session=True
            )
        self._started.append(process)
        return process

    def _runs(self, command: str) -> bool:
        """Runs a command on the head; returns whether it succeeds."""
        done = subprocess.run([*self.enter, "sh", "-c", command], capture_output=True, check=False)
        return done.returncode == 0


HEAD_ADDRESS = f"ip addr show br0 | grep -q {HEAD}"


def _ray(address: str, *arguments: str, cpus: int = 2) -> list[str]:
    """Ray's command for a node with so many cores, and two GPUs that do not exist."""
    resources = [f"--num-cpus={cpus}", "--num-gpus=2", "--disable-usage-stats", "--block"]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", f"--node-ip-address={address}"]
    return [*command, *resources, *arguments]


def _enter(pid: int, *namespaces: str) -> list[str]:
    return ["nsenter", "-t", str(pid), "--user", "--preserve-credentials", *namespaces]


def _first_child(pid: int) -> int:
    return psutil.Process(pid).children()[0].pid


def _is_held(pid: int) -> bool:
    """Whether the first process of a new namespace has mounted its folders and waits."""
    children = psutil.Process(pid).children()
    return bool(children) and children[0].cmdline()[:1] == ["sleep"]
