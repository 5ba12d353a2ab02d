"""Machines on this host: network namespaces on a bridge, each with its own process ids and /dev/shm.

    ctl    10.78.0.254   network of its own with the bridge; jobs are submitted here
    n1     10.78.0.1
    n2     10.78.0.2

Files are shared, as on a cluster with a network file system.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import wait_until

NODES = {"n1": "10.78.0.1", "n2": "10.78.0.2"}
CONTROLLER = "10.78.0.254"
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_NEEDED = ("ip", "unshare", "nsenter")
_REAPER = "while :; do sleep 3600 & wait; done"
"""The first process of a node must reap what its daemon leaves: under a `sleep`, zombies would pile up."""


def why_not(needed: tuple[str, ...], packages: str) -> str | None:
    """Returns why there can be no such machines with these programs here; None if there can be."""
    missing = [name for name in (*needed, *_NEEDED) if shutil.which(name, path=PATH) is None]
    if missing:
        return f"no {', '.join(missing)}: apt install {packages} iproute2"
    if os.geteuid() != 0:
        return "namespaces and their daemons need root"
    made = subprocess.run(["unshare", "--net", "--pid", "--fork", "true"], capture_output=True, check=False)
    return None if made.returncode == 0 else f"no namespaces: {made.stderr.decode().strip()}"


class Machines:
    """The machines, until `stop`. A subclass starts what runs on them."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
        self.folder.chmod(0o755)
        self._held: list[subprocess.Popen[bytes]] = []
        self._pids: dict[str, int] = {}
        try:
            self._connect()
            self.start()
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Starts the daemons."""

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of a command that talks to the daemons."""
        return {"PATH": PATH}

    def log(self) -> str:
        """The ends of the logs of the daemons."""
        return "\n".join(f"== {path}\n{path.read_text()[-800:]}" for path in self.folder.glob("*.log"))

    def enter(self, node: str = "ctl") -> list[str]:
        """The beginning of a command that runs on a node."""
        flags = ["--net", "--uts"] if node == "ctl" else ["--net", "--uts", "--mount", "--pid"]
        return ["nsenter", "-t", str(self._pids[node]), *flags, "--"]

    def call(self, node: str, *command: str) -> str:
        """Runs a command on a node and returns what it prints."""
        done = subprocess.run(
            [*self.enter(node), *command],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}\n{self.log()}"
        return done.stdout

    def stop(self) -> None:
        """Ends every process of the machines. A node goes with the first process of its namespace."""
        for node in NODES:
            if node in self._pids:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(self._pids[node]).kill()
        for process in self._held:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _connect(self) -> None:
        """Makes the machines and the network between them."""
        self._hold("ctl", "--net", "--uts")
        self.call("ctl", "ip", "link", "add", "br0", "type", "bridge")
        self.call("ctl", "ip", "addr", "add", f"{CONTROLLER}/24", "dev", "br0")
        self.call("ctl", "ip", "link", "set", "br0", "up")
        for node, address in NODES.items():
            self._hold(node, "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
            ends = ["type", "veth", "peer", "name", "eth0", "netns", str(self._pids[node])]
            self.call("ctl", "ip", "link", "add", f"v{node}", *ends)
            self.call("ctl", "ip", "link", "set", f"v{node}", "master", "br0", "up")
            self.call(node, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
            self.call(node, "ip", "link", "set", "eth0", "up")
            self.call(node, "mount", "-t", "tmpfs", "none", "/dev/shm")

    def _hold(self, name: str, *flags: str) -> None:
        """Makes the namespaces of a machine."""
        script = (
            f"hostname {name}; ip link set lo up; touch {self.folder}/{name}.up; exec bash -c '{_REAPER}'"
        )
        process = subprocess.Popen(
            ["unshare", *flags, "sh", "-c", script], stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._held.append(process)
        wait_until((self.folder / f"{name}.up").exists, f"the namespaces of {name}")
        inner = psutil.Process(process.pid).children() if "--fork" in flags else [psutil.Process(process.pid)]
        self._pids[name] = inner[0].pid
