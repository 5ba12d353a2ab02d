"""The driver's handle of one process of the job, which is a Ray actor."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.runner.cluster.actors import EngineActor, SglangActor, TrainerActor
from rlrun.runner.cluster.placement import BundleSlot
from rlrun.runner.cluster.rank_calls import Shared
from rlrun.runner.cluster.ray_environment import ray
from rlrun.runner.cluster.ray_nodes import Node
from rlrun.runner.host.background import in_background, with_deadline
from rlrun.runner.host.failures import Failure, ProcessFailure
from rlrun.runner.host.repeated_crashes import fatal_signal
from rlrun.runner.host.stacks import where

ASIDE = "aside"
"""Ray's concurrency group for calls that are answered while the process is busy."""
_PING_SECONDS = 1.0
_PASS_SECONDS = 4 * 3600.0
"""Deadline of pings that wait until the process is not busy."""


@dataclass(frozen=True, slots=True)
class Request:
    """A process to start."""

    name: str
    """Its name in messages: `trainer 0`, `engine 1`."""
    kind: type[TrainerActor] | type[EngineActor] | type[SglangActor]
    slot: BundleSlot
    environment: Mapping[str, str]
    """Variables that are set before its interpreter starts."""
    log: Path


class Process:
    """One process of the job."""

    def __init__(self, request: Request, actor: Any, node: Node, gpus: Sequence[str] = ()) -> None:
        self.request = request
        self._node = node
        self.gpus = tuple(gpus)
        """Ids of all GPUs that it may use, where its slot reaches over several; Ray tells it of one."""
        self.pid: int | None = None
        self.peak_memory = 0.0
        """Bytes, as of the last ping."""
        self._actor = actor
        self._log_start = request.log.stat().st_size if request.log.exists() else 0

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self.request.name

    @property
    def host(self) -> str:
        """The address of its node."""
        return self._node.address

    @property
    def log(self) -> Path:
        """The file that its output is appended to."""
        return self.request.log

    async def call(self, method: str, *args: Any, deadline: float) -> Any:
        """Runs a method of the process's actor and returns its result.

        Raises ProcessFailure when the process dies, or the method raises or does not end within `deadline`
        seconds.
        """
        return await self._answer(method, self._remote(method, method).remote(*args), deadline)

    async def run(self, method: str, *args: Any, deadline: float) -> tuple[Any, float]:
        """Runs a method of the rank that a TrainerActor holds; returns its result and the seconds that it
        took. Raises ProcessFailure as `call` does.
        """
        answer: tuple[Any, float] = await self._answer(
            method, self._remote("run", method).remote(method, *args), deadline
        )
        return answer

    def _remote(self, actor_method: str, method: str) -> Any:
        """Returns a method of the actor; `method`, which it runs, may be one that is called aside."""
        called = getattr(self._actor, actor_method)
        aside = method in self.request.kind.called_aside
        return called.options(concurrency_group=ASIDE) if aside else called

    async def _answer(self, method: str, pending: Any, deadline: float) -> Any:
        """Waits for a call of the actor; see `call`."""
        try:
            answer = await with_deadline(pending, deadline)
        except TimeoutError:
            what = f"{method!r} did not end within {deadline:g} s; {await self.where()}"
            raise ProcessFailure(self.name, "hung", what, self.log) from None
        except ray.exceptions.RayActorError as death:
            crash = fatal_signal(self.log, self._log_start)
            what = f"its process crashed: {crash}" if crash else await self._why(death)
            raise ProcessFailure(self.name, "died", what, self.log) from None
        except ray.exceptions.RayError as error:
            raise ProcessFailure(self.name, "raised", str(error).splitlines()[0], self.log) from error
        if isinstance(answer, Failure):
            raise ProcessFailure(
                self.name, "raised", answer.error, self.log, answer.errno, explained=answer.explained
            )
        return answer

    def share(self, value: Shared) -> Shared:
        """Stores a large argument once; returns a reference, which Ray replaces by the argument in calls."""
        reference: Shared = ray.put(value)
        return reference

    async def watch(self, deadline: float = _PASS_SECONDS) -> None:
        """Never returns; raises ProcessFailure as soon as the process is gone, unhealthy, or does not answer
        for `deadline` seconds.
        """
        while True:
            await self.identify(deadline)
            await asyncio.sleep(_PING_SECONDS)

    async def identify(self, deadline: float) -> None:
        """Asks for its process id and peak memory."""
        self.pid, self.peak_memory = await self.call("ping", deadline=deadline)

    async def where(self) -> str:
        """Makes the process write the stacks of its threads to its log; returns where it is."""
        if self.pid is None:
            return "its process has not started"
        return await where(self.pid, self.log)

    def kill(self) -> None:
        """Ends the process at once."""
        ray.kill(self._actor, no_restart=True)

    async def _why(self, death: BaseException) -> str:
        """Returns why the process died, in one sentence: its node is lost, or Ray's explanation."""
        if not await in_background(self._node.is_reachable):
            return f"its node {self.host} is lost"
        _, _, detail = str(death).replace("\n", " ").partition("Worker exit detail: ")
        sentence = detail.partition(". ")[0]
        if not sentence or "connection error" in sentence:
            return "its process ended without a word: killed, out of memory, or crashed"
        return sentence
