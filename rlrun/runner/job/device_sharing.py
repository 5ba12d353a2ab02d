"""Trainer and engines that share devices take turns: one of them at a time has its memory there.

engines sleep ─▶ trainer comes back ─▶ log-probs, updates ─▶ weights written
engines' weights wake ─▶ update ─▶ trainer leaves ─▶ engines' cache wakes ─▶ generation
"""

from typing import Literal, Protocol


class Sleeping(Protocol):
    """All engines, as far as their memory goes (rlrun.runner.engines.pool.pool.EnginePool)."""

    async def sleep(self) -> None:
        """Give the memory of weights and cache away until `wake`; nothing where it is gone already."""

    async def wake(self, tag: Literal["weights", "kv_cache"]) -> None:
        """Have that memory again: for weights that are about to be given, or to generate."""


class Leaving(Protocol):
    """The trainer, as far as its memory goes (rlrun.runner.cluster.trainer_group.TrainerGroup)."""

    async def offload(self) -> None:
        """Leave the devices' memory to others."""

    async def reload(self) -> None:
        """Take it back; nothing where it never left."""


class DeviceSharing:
    """Whose turn it is."""

    def __init__(self, engines: Sleeping, trainer: Leaving) -> None:
        self._engines = engines
        self._trainer = trainer

    async def to_trainer(self) -> None:
        """Engines give their memory away, weights too, and the trainer takes it; also where it has it."""
        await self._engines.sleep()
        await self._trainer.reload()

    async def to_update(self) -> None:
        """Engines have room for weights again, which the trainer still holds."""
        await self._engines.wake("weights")

    async def to_engines(self) -> None:
        """The trainer leaves, and engines generate again, with the weights they were given."""
        await self._trainer.offload()
        await self._engines.wake("kv_cache")
