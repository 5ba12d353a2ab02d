"""How long a rank waits for the others in an exchange, by what they are doing.

    start        meet, load the models, and the first pass of each kind, which compiles
    passes       every further pass and optimizer step
    transfers    checkpoints, exports and weights for the engines

In a pass ranks are seldom seconds apart, so a rank that hangs is found early. Before a transfer ends, ranks
may wait for the one with the slowest disk, and at the start for the one that compiles longest. torch ends
the waiting ranks when the time is over; the driver then starts all ranks again.
"""

from datetime import timedelta
from typing import Literal

import torch.distributed as dist

from rlrun.runner.trainer.compat.meshes import all_process_groups

Phase = Literal["start", "passes", "transfers"]

START_SECONDS = 1800.0
"""Files on a cold network disk, and compilation, take minutes."""
SLOW_BYTES_PER_SECOND = 50e6
"""A network disk that is slow but works."""


def exchange_seconds(phase: Phase, in_passes: float, state_bytes: float) -> float:
    """Returns how long a rank waits for the others in a phase.

    `in_passes`: `fault_tolerance.collective_timeout`. `state_bytes`: what one rank writes at most.
    """
    if phase == "passes":
        return in_passes
    if phase == "start":
        return max(in_passes, START_SECONDS)
    return max(in_passes, START_SECONDS + state_bytes / SLOW_BYTES_PER_SECOND)


class ExchangeTimeouts:
    """Sets the time-out of the process groups that exist when it is made; without any it does nothing.

    All ranks enter a phase at the beginning of a call, and the driver makes a call only when all ranks have
    ended the one before: no rank is still in a phase with a longer time-out.
    """

    def __init__(self, in_passes: float, state_bytes: float) -> None:
        """Enters the phase `start`. The arguments are those of `exchange_seconds`."""
        self._in_passes = in_passes
        self._state_bytes = state_bytes
        self._groups = all_process_groups()
        self._phase: Phase | None = None
        self._passes: set[str] = set()
        self.enter("start")

    def enter(self, phase: Phase) -> None:
        """Sets the time-out of exchanges that begin from now on."""
        if phase == self._phase:
            return
        self._phase = phase
        for group in self._groups:
            dist.set_timeout(timedelta(seconds=self.seconds(phase)), group)

    def enter_pass(self, kind: str) -> None:
        """Enters `passes`; the first pass of a kind still belongs to `start`."""
        self.enter("passes" if kind in self._passes else "start")
        self._passes.add(kind)

    def seconds(self, phase: Phase) -> float:
        """Returns how long a rank waits for the others in a phase."""
        return exchange_seconds(phase, self._in_passes, self._state_bytes)
