"""Starts, watches and restarts a job's trainer ranks, always all of them together.

actors ─▶ free port of rank 0's host ─▶ all ranks: import, meet there, load ─▶ known by pid
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlrun.runner.cluster.actors import TrainerActor
from rlrun.runner.cluster.placement import Placement
from rlrun.runner.cluster.rank_calls import run_on
from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.cluster.ray_process import Process, Request
from rlrun.runner.contracts.carriers import Role, TrainerSetup
from rlrun.runner.host.failures import ProcessFailure, gather_or_first_cause
from rlrun.runner.host.threads import thread_variables
from rlrun.runner.planning.plan import Plan, RankPlan
from rlrun.runner.records.run_folder import RunFolder
from rlrun.specs.sections.job import Spec

_START_SECONDS = 1800.0
"""Deadline for a trainer rank to import, meet the others and load its model."""
_BOOT_SECONDS = 120.0
"""Deadline for a process to come up."""


class TrainerRanks:
    """The trainer ranks of the plan, and the processes that run them now."""

    def __init__(
        self,
        cluster: Cluster,
        processes: Sequence[Process],
        spec: Spec,
        plan: Plan,
        *,
        folders: Mapping[Role, Path],
        weights: Path,
    ) -> None:
        """`folders` are those of the models that ranks read; `weights` is where weights go that engines read
        from a disk.
        """
        self.processes = list(processes)
        """By rank."""
        self._cluster = cluster
        self._spec = spec
        self._plan = plan
        self._folders = folders
        self._weights = weights

    async def start(self) -> None:
        """Makes the ranks meet and load the model. ProcessFailure is the first cause of a failure."""
        if not self.processes:
            return
        first = self.processes[0]
        master = (first.host, await first.call("free_port", deadline=_BOOT_SECONDS))
        calls = [
            process.call("start", self._setup(rank, process.host, master), deadline=_START_SECONDS)
            for process, rank in zip(self.processes, self._plan.ranks, strict=True)
        ]
        await gather_or_first_cause(calls)
        await gather_or_first_cause([process.identify(_BOOT_SECONDS) for process in self.processes])

    async def offload(self) -> None:
        """Frees the devices' memory for engines that start there."""
        await gather_or_first_cause(
            [run_on(process, lambda rank: rank.offload(), _BOOT_SECONDS) for process in self.processes]
        )

    async def watch(self) -> None:
        """Never returns; raises ProcessFailure as soon as a rank is gone or does not answer."""
        seconds = self._spec.fault_tolerance.trainer_timeout
        await gather_or_first_cause([process.watch(seconds) for process in self.processes])

    async def diagnose(self) -> ProcessFailure | None:
        """Returns the failure of a rank that is gone, if any."""
        return await self._cluster.diagnose(self.processes)

    async def restart(self) -> None:
        """Kills the processes of all ranks and starts them again in new ones."""
        self.processes = await self._cluster.replace(self.processes)
        await self.start()

    def _setup(self, rank: RankPlan, host: str, master: tuple[str, int]) -> TrainerSetup:
        assert self._plan.optimizer_steps is not None
        return TrainerSetup(
            spec_json=self._spec.model_dump_json(),
            model_folder=str(self._folders["policy"]),
            teacher_folder=self._folder("teacher"),
            reference_folder=self._folder("reference"),
            critic_folder=self._folder("critic"),
            rank=rank.rank,
            device="cpu" if rank.location.gpu is None else "cuda",
            world_size=len(self._plan.ranks),
            master_addr=master[0],
            master_port=master[1],
            threads=rank.threads,
            optimizer_steps=self._plan.optimizer_steps,
            critic_only=self._spec.critic.only_steps * self._plan.batch.optimizer_steps,
            weights_folder=str(self._weights),
            host=host,
            engine_process=self._plan.engine_process_on(rank.location),
        )

    def _folder(self, role: Role) -> str | None:
        return str(self._folders[role]) if role in self._folders else None


def trainer_requests(plan: Plan, placement: Placement, folder: RunFolder) -> list[Request]:
    """Returns the processes to start for the plan's ranks."""
    size = str(len(plan.ranks))
    return [
        Request(
            f"trainer {rank.rank}",
            TrainerActor,
            slot,
            {"RANK": str(rank.rank), "WORLD_SIZE": size, **thread_variables(rank.threads)},
            folder.logs / f"trainer-{rank.rank}.log",
        )
        for rank, slot in zip(plan.ranks, placement.ranks, strict=True)
    ]
