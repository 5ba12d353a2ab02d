"""The body of a trainer rank's process."""

import time
from typing import Any

from rlrun.runner.cluster.actor import Actor, reports_failure
from rlrun.runner.contracts.carriers import TrainerSetup


class TrainerActor(Actor):
    """Holds one trainer rank, whose methods the driver calls through `run` (see rank_calls.py)."""

    called_aside = frozenset({"ping", "abort_weights"})
    imports = "rlrun.runner.trainer.roles.rank"

    @reports_failure
    def start(self, setup: TrainerSetup) -> None:
        """Imports torch, joins the other ranks and loads the models: seconds to minutes."""
        from rlrun.runner.trainer.roles.rank import TrainerRank

        self._rank = TrainerRank(setup)

    @reports_failure
    def run(self, method: str, *args: Any) -> tuple[Any, float]:
        """Returns the answer of a method of TrainerRank, and the seconds that it took."""
        started = time.perf_counter()
        answer = getattr(self._rank, method)(*args)
        return answer, time.perf_counter() - started

    @reports_failure
    def close(self) -> None:
        """Removes shared memory and leaves the process group."""
        self._rank.close()
