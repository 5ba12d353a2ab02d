"""A real Slurm cluster of two nodes on this host, from Debian's packages.

    ctl      slurmctld
    n1, n2   slurmd

One munged serves all nodes: a socket with a path is not part of a network. There is no systemd and there are
no cgroups.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress

from tests.integration import machines
from tests.integration.machines import CONTROLLER, NODES, Machines
from tests.waiting import wait_until

_NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "munged")
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
    return machines.why_not(_NEEDED, "slurm-wlm munge")


class SlurmCluster(Machines):
    """The cluster, until `stop`."""

    def __init__(self, grace: int) -> None:
        """`grace`: seconds from the start of a preemption to its end (GraceTime)."""
        self._grace = grace
        super().__init__()

    def start(self) -> None:
        """Starts munge, slurmctld and a slurmd on each node."""
        for name in ("state", "munge"):
            (self.folder / name).mkdir(mode=0o755)
        configuration = _CONFIGURATION.format(folder=self.folder, controller=CONTROLLER, grace=self._grace)
        (self.folder / "slurm.conf").write_text(configuration)
        self._start_munge()
        self.call("ctl", "slurmctld", "-f", str(self.folder / "slurm.conf"), "-i")
        for node in NODES:
            self.call(node, "slurmd", "-f", str(self.folder / "slurm.conf"), "-N", node)
        wait_until(self._is_idle, "two idle nodes of Slurm", self.log)

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of a command that talks to this cluster."""
        return {**super().environment, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def queue(self) -> str:
        """What squeue says: a line `id state reason` for each job."""
        return self.call("ctl", "squeue", "--noheader", "--format=%i %T %r")

    def stop(self) -> None:
        """Ends the daemons that have left the machines' process groups, then the machines."""
        for file in ("slurmctld.pid", "munge/pid"):
            with suppress(OSError, ValueError):
                os.kill(int((self.folder / file).read_text()), signal.SIGKILL)
        super().stop()

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
        return asked.stdout.split() == list(NODES)
