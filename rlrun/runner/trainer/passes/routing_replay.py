"""Routing replay: the experts that a rank's sequences use in training (`trainer.moe.routing_replay`)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.passes.forward import Sequences
from rlrun.runner.trainer.passes.packed_model import Routes
from rlrun.specs.sections.trainer import RoutingReplay


class Replay:
    """Replays the experts that the pass over old log-probs chose, or those that the engines chose."""

    def __init__(self, kind: RoutingReplay) -> None:
        self._kind = kind
        self._noted: dict[int, NDArray[np.int16]] = {}

    @property
    def routes(self) -> Routes | None:
        """A list for the pass over old log-probs to fill; None where its choices are not replayed."""
        return [] if self._kind == "trainer" else None

    def keep(self, batches: Sequence[Sequence[int]], routes: Routes | None) -> None:
        """Keeps the choices for `in_training`, by sequence."""
        if routes is not None:
            self._noted = {
                index: experts
                for members, tables in zip(batches, routes, strict=True)
                for index, experts in zip(members, tables, strict=True)
            }

    def before_training(self, sequences: Sequences) -> Sequences:
        """Returns the sequences for the pass over old log-probs. Raises ValueError if an engine should have
        returned their experts and did not.
        """
        if self._kind == "engine" and any(sequence.experts is None for _, sequence in _items(sequences)):
            raise ValueError(
                'trainer.moe.routing_replay = "engine", but a sample has no experts: its rollout changed the '
                "tokens of the engine's last answer. Use another rollout, or another routing_replay"
            )
        return sequences

    def in_training(self, sequences: Sequences) -> Sequences:
        """Returns the sequences with the experts to use in updates. Without a pass over old log-probs (one
        optimizer step) there are none to replay.
        """
        if self._kind == "trainer" and self._noted:
            return {i: replace(sequence, experts=self._noted[i]) for i, sequence in _items(sequences)}
        return self.before_training(sequences)

    def forget(self) -> None:
        """Drops the kept experts when the updates are done."""
        self._noted = {}


def without_experts(sequences: Sequences) -> Sequences:
    """Returns the sequences without experts, for a model that routes them by itself."""
    return {i: replace(sequence, experts=None) for i, sequence in _items(sequences)}


def _items(sequences: Sequences) -> Sequence[tuple[int, TrainSequence]]:
    return list(sequences.items() if isinstance(sequences, Mapping) else enumerate(sequences))
