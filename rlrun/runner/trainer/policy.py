"""The policy as functions of micro-batches of sequences: log-probs with and without a gradient."""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from rlrun.converters.architecture import Architecture
from rlrun.runner.carriers import TrainSequence
from rlrun.runner.trainer.batch import Pack, make_pack
from rlrun.runner.trainer.compat import ParallelDims, get_spmd_context, reshard
from rlrun.runner.trainer.context import WHOLE, ContextPart, Together
from rlrun.runner.trainer.decoder import DecoderInputs, PackedDecoder, place_of
from rlrun.runner.trainer.head import HeadQuery
from rlrun.runner.trainer.layout import balanced, token_multiple
from rlrun.runner.trainer.rope import RopeTable
from rlrun.specs.trainer import ParallelSpec

LossOf = Callable[[int, torch.Tensor, torch.Tensor], torch.Tensor]
"""Loss of a micro-batch, by its number, from log-probs and entropies of its response tokens."""


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """What the policy is asked for, and where."""

    temperature: float
    """Logits are divided by it."""
    chunk: int
    """Tokens whose logits exist at a time."""
    parallel: ParallelSpec
    device: torch.device
    dtype: torch.dtype
    """Of hidden states."""


class Policy:
    """The whole decoder on this rank, or on it and those that share its layers with it."""

    def __init__(
        self,
        decoders: Sequence[PackedDecoder],
        model: Architecture,
        dims: ParallelDims | None,
        settings: PolicySettings,
    ) -> None:
        """`decoders` are the stages that lie on this rank, in order."""
        self.decoders = list(decoders)
        self.device = settings.device
        self.multiple = token_multiple(settings.parallel)
        """A pack's tokens must divide by this."""
        self._settings = settings
        self._rope = RopeTable(model, settings.device)
        self._context = contextlib.nullcontext if dims is None else get_spmd_context(parallel_dims=dims)
        self._group: dist.ProcessGroup | None = None
        self._part = WHOLE
        if dims is not None and dims.cp > 1:
            self._group = dims.get_mesh("cp").get_group()
            rank = dist.get_rank(self._group)
            self._part = ContextPart(rank, dims.cp, balanced(settings.parallel))

    def log_probs(self, batches: Sequence[Sequence[TrainSequence]]) -> list[tuple[torch.Tensor, ...]]:
        """`[R]` log-probs of each sequence of each micro-batch, in order."""
        found = []
        for sequences in batches:
            pack = self.pack(sequences)
            with torch.no_grad():
                log_probs, _ = self(pack)
            found.append(log_probs.split(pack.response_lengths))
        reshard(self.decoders)
        return found

    def accumulate(
        self, batches: Sequence[Sequence[TrainSequence]], loss_of: LossOf, entropy_grad: bool
    ) -> dict[str, float]:
        """Add the gradients of the micro-batches' losses to the parameters; returns seconds by pass."""
        seconds = {"perf/forward_time": 0.0, "perf/backward_time": 0.0}
        for index, sequences in enumerate(batches):
            start = time.perf_counter()
            loss = loss_of(index, *self(self.pack(sequences), entropy_grad))
            middle = time.perf_counter()
            self.backward(loss)
            seconds["perf/forward_time"] += middle - start
            seconds["perf/backward_time"] += time.perf_counter() - middle
        return seconds

    def __call__(self, pack: Pack, entropy_grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probs and entropies of the pack's response tokens, `[R]` float32."""
        [decoder] = self.decoders
        decoder.inputs = [self.inputs(pack, entropy_grad)]
        with self._context():
            log_probs, entropy = decoder(pack.tokens, place_of(0))
        return self.together(pack, log_probs, entropy)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the loss's gradients to the parameters'."""
        with self._context():
            loss.backward()

    def pack(self, sequences: Sequence[TrainSequence], size: int = 0) -> Pack:
        """This rank's part of a micro-batch, filled up to at least `size` tokens."""
        return make_pack(sequences, self.multiple, self.device, size=size, part=self._part)

    def inputs(self, pack: Pack, entropy_grad: bool) -> DecoderInputs:
        """What the decoder needs of a pack beside its tokens."""
        settings = self._settings
        query = HeadQuery(pack.rows, pack.targets, settings.temperature, settings.chunk, entropy_grad)
        return DecoderInputs(self._rope.rows(pack.positions, pack.longest), pack.documents, query)

    def together(
        self, pack: Pack, log_probs: torch.Tensor, entropy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A context-parallel rank's values `[R']` to those of all response tokens `[R]`."""
        if pack.found is None or self._group is None:
            return log_probs, entropy
        both = torch.stack((log_probs, entropy))
        both = Together.apply(both, pack.found, sum(pack.response_lengths), self._group)
        return both[0], both[1]
