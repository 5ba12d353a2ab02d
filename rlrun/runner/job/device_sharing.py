"""Moves the memory of devices between the trainer and the engines, where both run on the same devices.

give_to_trainer       engines drop weights and cache ─▶ the trainer loads its state ─▶ log-probs, updates
make_room_for_weights engines allocate their weights beside the trainer ─▶ weight update
give_to_engines       the trainer offloads its state ─▶ engines allocate their cache ─▶ generation
"""

from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.step_clock import StepClock
from rlrun.runner.engines.pool.pool import EnginePool


class DeviceSharing:
    """Decides whether the trainer or the engines may use the devices; the loop always calls it.

    Here, both have their own devices, so nothing has to move.
    """

    engines_awake = True
    """Whether engines hold weights and can generate."""

    async def give_to_trainer(self, clock: StepClock | None = None) -> None:
        """Puts the engines to sleep and loads the trainer; `clock` books the time under `sleep`."""

    async def make_room_for_weights(self) -> None:
        """Lets engines allocate memory for the weights that they are about to receive."""

    async def give_to_engines(self) -> None:
        """Offloads the trainer and lets engines generate with the weights that they received."""


class SharedDevices(DeviceSharing):
    """Trainer and engines take turns on the same devices."""

    def __init__(self, engines: EnginePool, trainer: TrainerGroup) -> None:
        self._engines = engines
        self._trainer = trainer

    async def give_to_trainer(self, clock: StepClock | None = None) -> None:
        with (clock or StepClock()).part("sleep"):
            self.engines_awake = False
            await self._engines.sleep()
            await self._trainer.reload()

    async def make_room_for_weights(self) -> None:
        await self._engines.wake("weights")

    async def give_to_engines(self) -> None:
        await self._trainer.offload()
        await self._engines.wake("kv_cache")
        self.engines_awake = True
