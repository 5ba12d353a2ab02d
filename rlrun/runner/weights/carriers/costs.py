"""What a weight update costs, as a carrier estimates it for `rlrun plan`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Payload = Literal["model", "elements", "adapters"]
"""What an update consists of: all weights, the elements that changed, or adapters alone."""

COMPARISON = 4e9
"""Bytes of weights that the first rank compares with the version before, per second: 1e9 per thread."""


@dataclass(frozen=True, slots=True)
class SyncTime:
    """The estimated seconds of one weight update."""

    way: str
    """How the weights travel, in a few words."""
    gather: float
    send: float
    """Seconds after gathering: from the trainer's first rank, or from its GPUs, to the servers."""
    overlapped: bool
    """Whether a bucket is gathered while another is sent."""

    @property
    def seconds(self) -> float:
        """Seconds of the whole update."""
        return max(self.gather, self.send) if self.overlapped else self.gather + self.send


@dataclass(frozen=True, slots=True)
class PlannedUpdate:
    """The size of an update that is planned."""

    payload: Payload
    size: float
    """Bytes that reach the engines."""
    whole: float
    """Bytes of the whole model, which are gathered to find the elements that changed."""

    @property
    def gathered(self) -> float:
        """Bytes that the trainer gathers."""
        return self.whole if self.payload == "elements" else self.size


class Links(Protocol):
    """The links of a job (rlrun.runner.planning.sync_time.JobLinks); speeds are in bytes per second."""

    @property
    def host(self) -> float:
        """Speed between a GPU and its host's memory."""

    @property
    def disk(self) -> float:
        """Speed of the disk that all nodes share."""

    @property
    def broadcast(self) -> float:
        """Speed from one rank to servers on other devices."""

    def gather_in_stages(self, size: float) -> float:
        """Returns the seconds in which all stages gather their tensors at the same time."""

    def gather_on_first_rank(self, size: float) -> float:
        """Returns the seconds in which rank 0 gathers the tensors of all stages."""

    def relay(self, size: float) -> float:
        """Returns the seconds in which buckets on GPUs reach the ranks of all other stages."""


def stored_time(update: PlannedUpdate, links: Links, ways: Mapping[Payload, str], speed: float) -> SyncTime:
    """Returns the time of an update that is written as a whole, and then read, at `speed`."""
    gather = links.gather_on_first_rank(update.gathered)
    if update.payload == "elements":
        gather += update.whole / COMPARISON
    return SyncTime(ways[update.payload], gather, 2 * update.size / speed, overlapped=False)
