"""The ranks of a trainer, each in a process of its own, without Ray."""

import asyncio
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rlrun.runner.cluster.actors import TrainerActor
from rlrun.runner.contracts.carriers import TrainerSetup
from rlrun.runner.host.failures import Failure
from rlrun.runner.host.network import free_port
from rlrun.runner.trainer.checkpoints.exports import make_writer
from rlrun.specs.sections.job import Spec
from tests.waiting import PATIENCE


class PipedRank:
    """A rank as TrainerGroup calls it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._turn = asyncio.Lock()

    async def run(self, method: str, *args: Any, deadline: float) -> tuple[Any, float]:
        """Runs a method of the rank."""
        return await self.call("run", method, *args, deadline=deadline)

    async def call(self, method: str, *args: Any, deadline: float) -> Any:
        """Runs a method of the process's actor, or `use`."""
        del deadline
        async with self._turn:
            self._pipe.send((method, args))
            return await asyncio.to_thread(self.answer)

    def share(self, value: Any) -> Any:
        """Returns the value itself: ranks share this process's memory."""
        return value

    def answer(self) -> Any:
        """Returns the answer to the last call."""
        if not self._pipe.poll(PATIENCE):
            raise TimeoutError(f"a rank did not answer within {PATIENCE:g} s")
        answer = self._pipe.recv()
        if isinstance(answer, Failure):
            raise RuntimeError(answer.trace)
        return answer


@contextmanager
def trainer_ranks(spec: Spec, model: Path, folder: Path) -> Iterator[list[PipedRank]]:
    """Ranks of the spec's layout, which have met and loaded the model; `use` gives them another spec."""
    context = multiprocessing.get_context("spawn")
    size, port = spec.trainer.parallel.world_size, free_port("127.0.0.1")
    pipes = [context.Pipe() for _ in range(size)]
    setups = [
        TrainerSetup(
            spec_json=spec.model_dump_json(),
            model_folder=str(model),
            rank=rank,
            device="cpu",
            world_size=size,
            master_addr="127.0.0.1",
            master_port=port,
            threads=1,
            optimizer_steps=100,
            weights_folder=str(folder / "weights"),
            engine_process=rank,
        )
        for rank in range(size)
    ]
    ranks = [PipedRank(ours) for ours, _ in pipes]
    processes = [
        context.Process(target=_serve, args=(setup, theirs), daemon=True)
        for setup, (_, theirs) in zip(setups, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    try:
        for rank in ranks:
            rank.answer()
        yield ranks
    finally:
        for ours, _ in pipes:
            ours.send(None)
        for (ours, _), process in zip(pipes, processes, strict=True):
            # Not its end: torch_shm_manager, which it starts, holds what join() waits for as long as somebody
            # here has a tensor of it.
            with suppress(EOFError):  # it died
                if ours.poll(PATIENCE):
                    ours.recv()
            process.kill()


def _serve(setup: TrainerSetup, pipe: Connection) -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    actor = TrainerActor.__new__(TrainerActor)  # its own __init__ would redirect our output
    pipe.send(actor.start(setup))
    while (call := pipe.recv()) is not None:
        method, args = call
        pipe.send(_use(actor, *args) if method == "use" else getattr(actor, method)(*args))
    actor.close()
    pipe.send("closed")


def _use(actor: TrainerActor, spec_json: str) -> None:
    """Give weights away as another spec says."""
    rank = actor._rank
    rank._writer.close()
    rank._spec = Spec.model_validate_json(spec_json)
    rank._writer = make_writer(
        rank._setup,
        rank._spec,
        rank._architecture,
        rank.policy.parameters,
        rank._device,
        present=rank._parking.present,
    )
