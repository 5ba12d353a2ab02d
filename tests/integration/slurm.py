"""A real Slurm cluster of two nodes on this host, from Debian's packages.

    ctl    10.78.0.254   network of its own with the bridge; slurmctld; jobs are submitted here
    n1     10.78.0.1     slurmd; its own network, process ids, host name and /dev/shm
    n2     10.78.0.2     the same

Files are shared, as on a cluster with a network file system. One munged serves all nodes: a socket with a
path is not part of a network. There is no systemd and there are no cgroups.
"""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from tests.waiting import wait_until

NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "munged", "ip", "unshare", "nsenter")
_NODES = {"n1": "10.78.0.1", "n2": "10.78.0.2"}
_CONTROLLER = "10.78.0.254"
_REAPER = "while :; do sleep 3600 & wait; done"
"""The first process of a node must reap what slurmd leaves: under a `sleep`, zombies would pile up."""
_CONFIGURATION = """
ClusterName=tests
SlurmctldHost=ctl({controller})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until the credential of its last attempt has expired, by default for two minutes.
AuthInfo=socket={folder}/munge/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# A node may have more cores in Slurm than this host has.
SlurmdParameters=config_overrides
ReturnToService=2
MpiDefault=none
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait=30
NodeName=n1 NodeAddr=10.78.0.1 CPUs=8 RealMemory=4000 State=UNKNOWN
NodeName=n2 NodeAddr=10.78.0.2 CPUs=8 RealMemory=4000 State=UNKNOWN
PartitionName=low Nodes=n[1-2] Default=YES MaxTime=60 PriorityTier=1 GraceTime={grace} State=UP
PartitionName=high Nodes=n[1-2] MaxTime=60 PriorityTier=10 PreemptMode=off State=UP
"""


def why_not() -> str | None:
    """Returns why there can be no such cluster here; None if there can be."""
    if missing := [name for name in NEEDED if shutil.which(name, path=_path()) is None]:
        return f"no {', '.join(missing)}: apt install slurm-wlm munge iproute2"
    if os.geteuid() != 0:
        return "slurmd and its namespaces need root"
    made = subprocess.run(["unshare", "--net", "--pid", "--fork", "true"], capture_output=True, check=False)
    return None if made.returncode == 0 else f"no namespaces: {made.stderr.decode().strip()}"


class SlurmCluster:
    """The cluster, until `stop`."""

    def __init__(self, grace: int) -> None:
        """`grace`: seconds from the start of a preemption to its end (GraceTime)."""
        self.folder = Path(tempfile.mkdtemp(prefix="sl", dir="/tmp"))
        self.folder.chmod(0o755)
        self._held: list[subprocess.Popen[bytes]] = []
        self._pids: dict[str, int] = {}
        try:
            self._start(grace)
        except BaseException:
            self.stop()
            raise

    def _start(self, grace: int) -> None:
        for name in ("state", "munge"):
            (self.folder / name).mkdir(mode=0o755)
        configuration = _CONFIGURATION.format(folder=self.folder, controller=_CONTROLLER, grace=grace)
        (self.folder / "slurm.conf").write_text(configuration)
        self._hold("ctl", "--net", "--uts")
        self.call("ctl", "ip", "link", "add", "br0", "type", "bridge")
        self.call("ctl", "ip", "addr", "add", f"{_CONTROLLER}/24", "dev", "br0")
        self.call("ctl", "ip", "link", "set", "br0", "up")
        for node, address in _NODES.items():
            self._hold(node, "--net", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
            ends = ["type", "veth", "peer", "name", "eth0", "netns", str(self._pids[node])]
            self.call("ctl", "ip", "link", "add", f"v{node}", *ends)
            self.call("ctl", "ip", "link", "set", f"v{node}", "master", "br0", "up")
            self.call(node, "ip", "addr", "add", f"{address}/24", "dev", "eth0")
            self.call(node, "ip", "link", "set", "eth0", "up")
            self.call(node, "mount", "-t", "tmpfs", "none", "/dev/shm")
        self._start_munge()
        self.call("ctl", "slurmctld", "-f", str(self.folder / "slurm.conf"), "-i")
        for node in _NODES:
            self.call(node, "slurmd", "-f", str(self.folder / "slurm.conf"), "-N", node)
        wait_until(self._is_idle, "two idle nodes of Slurm", self.log)

    def enter(self, node: str = "ctl") -> list[str]:
        """The beginning of a command that runs on a node."""
        flags = ["--net", "--uts"] if node == "ctl" else ["--net", "--uts", "--mount", "--pid"]
        return ["nsenter", "-t", str(self._pids[node]), *flags, "--"]

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a command that talks to this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _path()}

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

    def queue(self) -> str:
        """What squeue says: a line `id state reason` for each job."""
        return self.call("ctl", "squeue", "--noheader", "--format=%i %T %r")

    def log(self) -> str:
        """The ends of the logs of Slurm."""
        return "\n".join(f"== {path}\n{path.read_text()[-800:]}" for path in self.folder.glob("*.log"))

    def stop(self) -> None:
        """Ends every process of the cluster. A node goes with the first process of its namespace."""
        for node in _NODES:
            if node in self._pids:
                with suppress(psutil.NoSuchProcess):
                    psutil.Process(self._pids[node]).kill()
        for file in ("slurmctld.pid", "munge/pid"):
            with suppress(OSError, ValueError):
                os.kill(int((self.folder / file).read_text()), signal.SIGKILL)
        for process in self._held:
            for child in psutil.Process(process.pid).children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    child.kill()
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

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

    def _start_munge(self) -> None:
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        files = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        options = [f"--{option}={munge / file}" for option, file in files.items()]
        command: Sequence[str] = ["munged", "--force", *options]
        subprocess.run(command, env=os.environ | self.environment, check=True, capture_output=True)

    def _is_idle(self) -> bool:
        sinfo = ["sinfo", "--noheader", "--Node", "--partition=low", "--states=idle", "--format=%N"]
        asked = subprocess.run(
            [*self.enter(), *sinfo],
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return asked.stdout.split() == list(_NODES)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"
