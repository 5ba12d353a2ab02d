"""Which experts a rank's sequences are routed to in training, by `trainer.moe.routing_replay`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.passes.forward import Sequences
from rlrun.runner.trainer.passes.packed_model import Routes
from rlrun.specs.sections.trainer import RoutingReplay


class Replay:
    """Keeps what the pass over old log-probs chose until the updates are done, or takes what engines did."""

    def __init__(self, kind: RoutingReplay) -> None:
        self._kind = kind
        self._noted: dict[int, NDArray[np.int16]] = {}

    @property
    def routes(self) -> Routes | None:
        """Where the pass over old log-probs is to note its choices; None: nowhere."""
        return [] if self._kind == "trainer" else None

    def keep(self, batches: Sequence[Sequence[int]], routes: Routes | None) -> None:
        """Remember choices for `in_training`, by sequence."""
        if routes is not None:
            found = zip(batches, routes, strict=True)
            self._noted = {i: own for members, some in found for i, own in zip(members, some, strict=True)}

    def before_training(self, sequences: Sequences) -> Sequences:
        """The sequences as the pass over old log-probs takes them. ValueError where an engine should have
        told their experts.
        """
        if self._kind == "engine" and any(one.experts is None for _, one in _items(sequences)):
            raise ValueError(
                'trainer.moe.routing_replay = "engine", and a sample came without the experts it was routed '
                "to: its rollout makes samples of other tokens than an engine's last answer"
            )
        return sequences

    def in_training(self, sequences: Sequences) -> Sequences:
        """The sequences with the experts to take in updates. Without a pass before them (one update, by the
        policy that is asked) there is nothing to take over.
        """
        if self._kind == "trainer" and self._noted:
            return {i: replace(one, experts=self._noted[i]) for i, one in _items(sequences)}
        return self.before_training(sequences)

    def forget(self) -> None:
        """The updates are done."""
        self._noted = {}


def without_experts(sequences: Sequences) -> Sequences:
    """The sequences as another model routes them."""
    return {i: replace(one, experts=None) for i, one in _items(sequences)}


def _items(sequences: Sequences) -> Sequence[tuple[int, TrainSequence]]:
    return list(sequences.items() if isinstance(sequences, Mapping) else enumerate(sequences))
