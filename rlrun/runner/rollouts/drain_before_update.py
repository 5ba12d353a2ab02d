"""Engines that take new weights only while nothing is generated: every sample is of one version."""

from typing import Protocol

from rlrun.runner.contracts.carriers import WeightUpdate
from rlrun.runner.contracts.interfaces import Engines


class Draining(Protocol):
    """Whoever asks the engines (rlrun.runner.rollouts.asynchronous.AsynchronousSource)."""

    async def drain(self) -> None:
        """Begin nothing more; return when nothing is under way."""

    def go_on(self) -> None:
        """Begin again what there is room for."""


class DrainBeforeUpdate:
    """How the loop updates such engines; nothing else is asked of them here."""

    def __init__(self, engines: Engines, source: Draining) -> None:
        self._engines = engines
        self._source = source

    async def update_weights(self, update: WeightUpdate) -> int:
        """Wait for what runs, then update; the version that all engines confirm."""
        await self._source.drain()
        try:
            return await self._engines.update_weights(update)
        finally:
            self._source.go_on()
