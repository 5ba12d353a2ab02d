"""The interface of a carrier: one way in which weights travel from the trainer to the engines.

A carrier is a module or folder of rlrun.runner.weights.carriers, an entry in its table, and what a spec may
say about it (rlrun.specs.sections.weight_carriers). It has all sides:

    trainer rank    `writer` returns what stores or streams the weights there
    driver          the update that the writer returns has `give` (stored), or `load` (streamed), which
                    makes an engine read it
    native engine   `reader` returns what reads the weights that a request names

Writers and readers need torch, so a carrier imports them when one is made: plan and driver run without torch.
"""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from rlrun.runner.weights.carriers.costs import Links, PlannedUpdate, SyncTime
from rlrun.specs.sections.job import Spec

if TYPE_CHECKING:
    from rlrun.runner.weights.carriers.reader import Reader, ReadingEngine
    from rlrun.runner.weights.rank_weights import RankAdapters, RankWeights
    from rlrun.runner.weights.writer import Writer


class Carrier(ABC):
    """One way in which weights travel."""

    @abstractmethod
    def writer(self, spec: Spec, source: "RankWeights") -> "Writer":
        """Returns one rank's side for the whole model, or for the elements that change."""

    def adapter_writer(self, spec: Spec, source: "RankAdapters") -> "Writer":
        """Returns one rank's side for adapters alone. ValueError if the carrier does not take them."""
        raise ValueError(f"adapters do not travel by {type(self).__name__}")

    def reader(self, engine: "ReadingEngine") -> "Reader | None":
        """Returns a native engine's side; None if the carrier is for SGLang servers only."""
        return None

    @abstractmethod
    def sync_time(self, spec: Spec, update: PlannedUpdate, links: Links) -> SyncTime:
        """Returns the estimated time of an update; engines' own copying is not counted."""

    def device_bytes(self, spec: Spec) -> tuple[int, str]:
        """Returns the bytes on each GPU while the whole model is sent, and what they are; none by default."""
        return 0, ""

    held_models: ClassVar[int] = 0
    """How many whole models rank 0 keeps in host memory to send the elements that change."""
