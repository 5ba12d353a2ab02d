"""A launch during which processes are killed or stopped at chosen moments.

Runs in the driver: a fault stops its victim before a call of the driver's begins, so that the call is under
way when the victim is killed, or left hanging.
"""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.cli.main import run
from rlrun.runner.cluster.ray import Cluster
from rlrun.runner.cluster.start_trainer import TrainerRanks
from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.rollouts.evaluation import Evaluator

MOMENTS: dict[str, tuple[type, str]] = {
    "starting Ray": (Cluster, "start"),
    "starting ranks": (TrainerRanks, "start"),
    "evaluation": (Evaluator, "run"),
    "generation": (EngineClient, "generate_batch"),
    "weight sync": (EngineClient, "update_weights"),
    "writing weights": (TrainerGroup, "write_weights"),
    "training": (TrainerGroup, "train"),
    "saving": (TrainerGroup, "save"),
    "writing a checkpoint": (TrainerGroup, "saved"),
    "checking a checkpoint": (TrainerGroup, "check"),
    "loading": (TrainerGroup, "load"),
    "exporting": (TrainerGroup, "export_hf"),
}
UNDER_WAY_SECONDS = 0.3
"""From the beginning of a call to the kill."""


@dataclass(frozen=True)
class Fault:
    """What happens to a process in the n-th call of a moment."""

    victim: str
    """`engine 0`, `trainer 1`, `driver`."""
    moment: str
    call: int
    hangs: bool = False
    """It is stopped for good instead of killed."""
    number: int = signal.SIGKILL
    """The signal."""


def main_with(faults: Sequence[Fault]) -> str:
    """The Python of a launch that has these faults."""
    root = str(Path(__file__).parents[2])
    wanted = [(one.victim, one.moment, one.call, one.hangs, int(one.number)) for one in faults]
    return f"import sys; sys.path.append({root!r}); from tests.fault import moments; moments.main({wanted!r})"


def main(faults: Sequence[tuple[str, str, int, bool, int]]) -> None:
    """Arm the faults and launch."""
    pids = _pids_of_processes()
    for name, (owner, method) in MOMENTS.items():
        chosen = {fault.call: fault for fault in (Fault(*one) for one in faults) if fault.moment == name}
        setattr(owner, method, _faulty(getattr(owner, method), chosen, pids))
    run()


def _pids_of_processes() -> Callable[[str], int]:
    processes: dict[str, Any] = {}
    launch = Cluster.launch

    async def launch_and_note(cluster: Cluster, requests: Any) -> Any:
        made = await launch(cluster, requests)
        processes.update({process.name: process for process in made})
        return made

    Cluster.launch = launch_and_note  # type: ignore[method-assign]
    return lambda name: os.getpid() if name == "driver" else processes[name].pid


def _faulty(
    method: Callable[..., Awaitable[Any]], faults: dict[int, Fault], pid: Callable[[str], int]
) -> Callable[..., Awaitable[Any]]:
    calls: Counter[None] = Counter()

    async def call(*args: Any, **kwargs: Any) -> Any:
        calls[None] += 1
        fault = faults.get(calls[None])
        if fault is None:
            return await method(*args, **kwargs)
        victim = pid(fault.victim)
        print(f"fault: {fault}", flush=True)
        if victim == os.getpid():
            os.kill(victim, fault.number)
            return await method(*args, **kwargs)
        os.kill(victim, signal.SIGSTOP)
        under_way = asyncio.ensure_future(method(*args, **kwargs))
        try:
            await asyncio.sleep(UNDER_WAY_SECONDS)
            if not fault.hangs:
                os.kill(victim, fault.number)
                os.kill(victim, signal.SIGCONT)
            if fault.number == signal.SIGILL:
                # it prints its stack before it dies, and its other threads may end the step meanwhile
                await asyncio.Event().wait()
            return await under_way
        finally:
            under_way.cancel()

    return call
