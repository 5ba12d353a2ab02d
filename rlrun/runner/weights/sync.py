"""Gives the trainer's weights to the engines, one version after the other.

push ─▶ every rank's Writer stores the weights or announces them             rlrun.runner.weights.writer
     ─▶ every engine that is up reads them, or loads bucket after bucket     rlrun.runner.weights.delivery
     ─▶ all of them confirm the version

An engine that is lost meanwhile gets the last update when it is started again; a streamed update carries the
trainer that it comes from. What travels between the two sides is a carrier's (rlrun.runner.weights.carriers).
"""

from typing import Protocol

from rlrun.runner.contracts.interfaces import WeightReceiver
from rlrun.runner.contracts.weight_updates import WeightUpdate


class WeightOwner(Protocol):
    """The trainer, whose weights are pushed (rlrun.runner.cluster.trainer_group.TrainerGroup)."""

    async def write_weights(self, version: int) -> WeightUpdate:
        """Writes the current weights to where the engines can read them, or announces them."""


class Turns(Protocol):
    """Takes devices that trainer and engines share to and fro (rlrun.runner.job.device_sharing)."""

    async def give_to_trainer(self) -> None:
        """Lets the trainer use the devices."""

    async def make_room_for_weights(self) -> None:
        """Lets engines allocate memory for the weights that they are about to receive."""

    async def give_to_engines(self) -> None:
        """Lets the engines generate."""


class Probe(Protocol):
    """Compares what trainer and engines compute (rlrun.runner.job.sync_probe.SyncProbe)."""

    async def score_with_trainer(self) -> None:
        """Computes the trainer's log-probs with the weights that are pushed next."""

    async def check(self, version: int) -> None:
        """Raises JobError if an engine's log-probs do not follow the trainer's."""


class WeightSync:
    """The road of the weights from one trainer to its engines."""

    def __init__(
        self, trainer: WeightOwner, engines: WeightReceiver, turns: Turns, probe: Probe | None = None
    ) -> None:
        self._trainer, self._engines = trainer, engines
        self._turns, self._probe = turns, probe

    async def push(self, version: int) -> int:
        """Makes all engines serve the trainer's weights; returns the bytes of the update.

        Raises EngineError if an engine fails that nobody starts again, JobError if the probe finds engines
        that generate with something else.
        """
        await self._turns.give_to_trainer()
        if self._probe is not None:
            await self._probe.score_with_trainer()
        update = await self._trainer.write_weights(version)
        await self._turns.make_room_for_weights()
        confirmed = await self._engines.update_weights(update)
        await self._turns.give_to_engines()
        assert confirmed == version, f"engines serve weights {confirmed}, the trainer pushed {version}"
        if self._probe is not None:
            await self._probe.check(version)
        return update.size
