"""A model as functions of micro-batches of sequences: log-probs or values, with and without a gradient."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from rlrun.models.architecture import Architecture
from rlrun.models.low_precision import LowPrecision
from rlrun.runner.contracts.carriers import Output, TrainSequence
from rlrun.runner.planning.rank_layout import token_multiple, uses_balanced_context
from rlrun.runner.trainer.compat.data_parallel import reshard
from rlrun.runner.trainer.compat.meshes import ParallelDims, get_spmd_context
from rlrun.runner.trainer.model.decoder import DecoderInputs, PackedDecoder, place_of
from rlrun.runner.trainer.model.head import HeadQuery
from rlrun.runner.trainer.model.mtp_block import MtpInputs
from rlrun.runner.trainer.model.rope import RopeTable
from rlrun.runner.trainer.model.routing import Routing, connect_routers, gathered, noted_experts
from rlrun.runner.trainer.model.top_tokens import Comparison, TopTokens
from rlrun.runner.trainer.model.vision_tower import blank_image
from rlrun.runner.trainer.passes.context import WHOLE, ContextPart, GatherResponses
from rlrun.runner.trainer.passes.meter import Meter
from rlrun.runner.trainer.passes.packed_batch import LossBatch, Pack, make_pack
from rlrun.runner.trainer.passes.stopwatch import Stopwatch
from rlrun.runner.trainer.transfers import to_device, to_host
from rlrun.specs.derived.conflicts.features import SHARED_PREFIXES
from rlrun.specs.derived.conflicts.reading import reason_against_model
from rlrun.specs.sections.trainer import ParallelSpec


@dataclass(frozen=True, slots=True)
class MtpOutputs:
    """The predictions of a pack's R response tokens, `[R]` float32 each.

    A response token is predicted from the hidden state two tokens before it and the embedding of the token
    between. The loss is the cross-entropy at temperature 1, as Megatron-LM computes it, with the weights of
    the policy's loss: masked tokens do not count.
    """

    log_probs: torch.Tensor
    hits: torch.Tensor
    """1 where the token is the most probable one, else 0."""


class LossOf(Protocol):
    """Computes a micro-batch's loss."""

    def __call__(
        self,
        index: int,
        log_probs: torch.Tensor,
        entropy: torch.Tensor,
        mtp: MtpOutputs | None = None,
        divergence: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Returns the loss from the micro-batch's number, and the model's outputs for its R tokens."""


SQUARES: Output = "policy_squared_probs"
TOP_TOKENS: tuple[Output, Output] = ("top_ids", "top_log_probs")
"""What only a teacher's head returns, both or neither."""
_PLACES: Mapping[Output, int] = {"log_probs": 0, "values": 0, "policy_entropies": 1, SQUARES: 2}
"""The place of each output of one number among those of a head."""

Routes = list[list[NDArray[np.int16]]]
"""`[P + R, layers × K]`: the experts that each token went to, by micro-batch and sequence."""


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How a model computes: sampling temperature, layout, device, precision."""

    temperature: float
    """Logits are divided by this."""
    chunk: int
    """The number of tokens whose logits are in memory at a time."""
    parallel: ParallelSpec
    device: torch.device
    dtype: torch.dtype
    """The dtype of hidden states."""
    routed: bool = False
    """Routers get a `Routing` with each pack: experts to use, if sequences name them, and tokens to count."""
    precision: LowPrecision | None = None
    """In what the layers multiply, if not in `dtype`."""
    kept_logits: int = 0
    """`trainer.kept_logits`, in bytes."""
    share: bool = False
    """Prefixes that sequences of a micro-batch share are computed once."""
    as_target: bool = False
    """Angles and log-probs are rounded as SGLang's servers round them, like the decoder's layers."""
    comparison: Comparison | None = None
    """How the policy is compared with a teacher's distribution; None: it is not."""


class PackedModel:
    """A whole decoder without pipeline stages, on this rank or sharded over several."""

    def __init__(
        self,
        decoders: Sequence[PackedDecoder],
        model: Architecture,
        dims: ParallelDims | None,
        settings: ModelSettings,
    ) -> None:
        """`decoders` are this rank's stages, in order; there is one unless a pipeline subclass is used."""
        if settings.share and (reason := reason_against_model(SHARED_PREFIXES, model)):
            raise ValueError(f"trainer.share_prefixes is not supported for {model.family}: {reason}")
        self.decoders = list(decoders)
        self.device = settings.device
        self.multiple = token_multiple(settings.parallel, settings.precision)
        """The number of a pack's tokens must be divisible by this."""
        self._settings = settings
        self._rope = RopeTable(model, settings.device, on_device=settings.as_target)
        self._context = contextlib.nullcontext if dims is None else get_spmd_context(parallel_dims=dims)
        self._group: dist.ProcessGroup | None = None
        self._part = WHOLE
        self._tower, self._is_sharded = model.tower, dims is not None
        self._experts = model.experts if settings.routed else None
        self._layers = model.layers
        self._has_mtp = model.mtp is not None
        self._scores = model.scores
        self._tensor = None if dims is None or dims.tp == 1 else dims.get_mesh("tp").get_group()
        if self._experts is not None:
            for decoder in self.decoders:
                connect_routers(decoder.layers, model.layers)
        if dims is not None and dims.cp > 1:
            self._group = dims.get_mesh("cp").get_group()
            rank = dist.get_rank(self._group)
            self._part = ContextPart(rank, dims.cp, uses_balanced_context(settings.parallel))

    def outputs(
        self,
        batches: Sequence[Sequence[TrainSequence]],
        names: Sequence[Output],
        routes: Routes | None = None,
    ) -> list[tuple[torch.Tensor, ...]]:
        """Returns `[K, R]` outputs of the names for each sequence of each micro-batch, in order, without
        gradients. Each name has one row; a teacher's `top_ids` have k, and its `top_log_probs` k + 1.

        `routes`, where given, is filled with the experts that the tokens went to. Results are in host memory,
        where the device still fills them: call `transfers.wait` before reading them.
        """
        results = []
        for sequences in batches:
            pack = self.pack(sequences)
            inputs = self.output_inputs(pack, names, note=routes is not None)
            with torch.no_grad():
                table = self.stacked(self._values(pack, inputs), names)
            results.append(to_host(table).split(pack.response_lengths, dim=1))
            if routes is not None:
                routes.append(self.routes(sequences, pack, inputs))
        reshard(self.decoders)  # FSDP keeps the last gathered layers where no backward pass follows
        return results

    @property
    def has_losses(self) -> bool:
        """Whether `accumulate` computes losses on this rank."""
        return True

    def accumulate(
        self,
        batches: Sequence[Sequence[TrainSequence]],
        loss_of: LossOf,
        entropy_grad: bool,
        stopwatch: Stopwatch,
    ) -> None:
        """Adds the gradients of the micro-batches' losses to the parameters, and times both passes.

        A GPU still works on a micro-batch while the host packs the next one: nothing here waits for it.
        """
        for index, sequences in enumerate(batches):
            with stopwatch.part("perf/forward_time"):
                loss = loss_of(index, *self._outputs(self.pack(sequences), entropy_grad))
            with stopwatch.part("perf/backward_time"):
                self.backward(loss)

    def __call__(self, pack: Pack, entropy_grad: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns log-probs and entropies of the pack's response tokens, each `[R]` float32."""
        log_probs, entropy = self._values(pack, self.inputs(pack, entropy_grad))
        return log_probs, entropy

    def _outputs(
        self, pack: Pack, entropy_grad: bool
    ) -> tuple[torch.Tensor, torch.Tensor, MtpOutputs | None, torch.Tensor | None]:
        """Returns what a loss depends on: log-probs, entropies, the outputs of an MTP layer, and divergences
        from a teacher.
        """
        inputs = self.loss_inputs(pack, entropy_grad)
        if not self._has_mtp:
            log_probs, entropy, *divergence = self._values(pack, inputs)
            return log_probs, entropy, None, divergence[0] if divergence else None
        inputs = replace(inputs, mtp=_mtp_inputs(pack, self._settings.chunk))
        log_probs, entropy, *further = self._decode(pack, inputs)
        own = further.pop(0) if self._settings.comparison is not None else None
        return log_probs, entropy, _mtp_outputs(pack, *further), own

    def _values(self, pack: Pack, inputs: DecoderInputs) -> tuple[torch.Tensor, ...]:
        return self.all_responses(pack, self._decode(pack, inputs))

    def _decode(self, pack: Pack, inputs: DecoderInputs) -> tuple[torch.Tensor, ...]:
        [decoder] = self.decoders
        decoder.inputs = [inputs]
        with self._context():
            outputs: tuple[torch.Tensor, ...] = decoder(pack.tokens, place_of(0, self.device))
        return outputs

    def backward(self, loss: torch.Tensor) -> None:
        """Adds the gradients of a loss to the parameters'."""
        with self._context():
            loss.backward()

    def pack(self, sequences: Sequence[TrainSequence], size: int = 0) -> Pack:
        """Returns this rank's part of a micro-batch, filled up to at least `size` tokens."""
        return make_pack(
            sequences,
            self.multiple,
            self.device,
            size=size,
            part=self._part,
            ends=self._scores,
            tower=self._tower,
            share=self._settings.share,
        )

    def loss_inputs(self, pack: Pack, entropy_grad: bool) -> DecoderInputs:
        """Returns the decoder's inputs besides tokens for a loss, which may read divergences."""
        asked = self._settings.comparison
        if asked is None:
            return self.inputs(pack, entropy_grad)
        # a pack without sequences has no teacher's tokens, and its head returns as many outputs
        nothing = TopTokens(pack.targets.new_empty(0, 1), torch.empty(0, 2, device=self.device))
        teacher = nothing if pack.teacher is None else pack.teacher
        assert len(teacher.ids) == len(pack.targets), "the teacher's pass comes before the loss"
        return self.inputs(pack, entropy_grad, comparison=asked, teacher=teacher)

    def output_inputs(self, pack: Pack, names: Sequence[Output], *, note: bool) -> DecoderInputs:
        """Returns the decoder's inputs besides tokens for a pass that returns the named outputs."""
        asked = self._settings.comparison if set(TOP_TOKENS) & set(names) else None
        return self.inputs(pack, squares=SQUARES in names, note=note, comparison=asked)

    def inputs(
        self,
        pack: Pack,
        entropy_grad: bool = False,
        *,
        squares: bool = False,
        note: bool = False,
        comparison: Comparison | None = None,
        teacher: TopTokens | None = None,
    ) -> DecoderInputs:
        """Returns the decoder's inputs besides tokens. `squares`: the head returns sums of squared
        probabilities too. `note`: routers record the experts they choose. `comparison`, `teacher`: as in
        `HeadQuery`.
        """
        settings, documents = self._settings, pack.documents
        query = HeadQuery(
            pack.rows,
            pack.targets,
            settings.temperature,
            settings.chunk,
            entropy_grad,
            pack.support,
            settings.kept_logits,
            squares=squares,
            as_target=settings.as_target,
            comparison=comparison,
            teacher=teacher,
        )
        if self._experts is not None:
            tensor_rank = 0 if self._tensor is None else dist.get_rank(self._tensor)
            routing = Routing(pack.experts, tensor_rank, counted=self._counted(pack), note=note)
            documents = replace(documents, routing=routing)
        images = pack.images
        if images is None and self._tower is not None and self._is_sharded:
            images = blank_image(self._tower, self.device)
        if images is not None and self._settings.parallel.sequence_parallel:
            images = replace(images, group=self._tensor)
        return DecoderInputs(self._rope.rows(pack.positions, pack.longest), documents, query, images)

    def _counted(self, pack: Pack) -> torch.Tensor | None:
        """Returns how often each of the rank's T' tokens counts: not if it only fills up the pack, and once
        for each sequence that shares it. None: all once.
        """
        if pack.paths is not None:
            shared = np.concatenate([np.zeros(0, np.int64), *pack.paths])
            return to_device(np.bincount(shared, minlength=pack.tokens.shape[1]), self.device)
        if not pack.filling:
            return None
        total = pack.tokens.shape[1] * self._part.size
        return to_device(self._part.tokens(total) < total - pack.filling, self.device)

    def routes(
        self, sequences: Sequence[TrainSequence], pack: Pack, inputs: DecoderInputs
    ) -> list[NDArray[np.int16]]:
        """Returns `[P + R, layers × K]` for each sequence of a pack that the decoder has processed: the
        experts that its tokens went to, in this stage's layers. The device still fills the arrays: call
        `transfers.wait` before reading them.
        """
        assert self._experts is not None and inputs.documents.routing is not None
        tokens = pack.tokens.shape[1]
        shape = (tokens, self._layers, self._experts.per_token)
        table = noted_experts(inputs.documents.routing, shape, self._tensor)
        if self._group is not None:
            # each context rank has noted its own tokens: gather them, and put them in the pack's order
            everyones = gathered(to_device(table, self.device), self._group)
            table = everyones[to_device(self._part.gathered(len(everyones)), self.device)]
        lengths = [len(sequence.tokens) for sequence in sequences]
        if pack.paths is None:
            table = table[: sum(lengths)]
        else:
            places = np.concatenate([np.zeros(0, np.int64), *pack.paths])
            table = table[to_device(places, table.device)]
        host = to_host(table.to(torch.int16))
        return [experts.numpy() for experts in host.split(lengths)]

    def rows_of(self, name: Output) -> int:
        """Returns how many rows of numbers an output has."""
        return len(self._places(name))

    def stacked(self, outputs: tuple[torch.Tensor, ...], names: Sequence[Output]) -> torch.Tensor:
        """Returns `[K, R]` the named ones of a head's outputs, each with its rows."""
        return torch.stack([outputs[place] for name in names for place in self._places(name)])

    def num_outputs(self, names: Sequence[Output]) -> int:
        """Returns how many outputs a head has when it is asked for the named ones."""
        return max(2, *(self._places(name).stop for name in names))

    def _places(self, name: Output) -> range:
        """Returns the places of an output among those of a head."""
        if name not in TOP_TOKENS:
            return range(_PLACES[name], _PLACES[name] + 1)
        assert self._settings.comparison is not None, "only a teacher has them"
        start, middle = 2, 2 + self._settings.comparison.top_k + 1
        return range(start, middle) if name == "top_log_probs" else range(middle, 2 * middle - start - 1)

    def all_responses(self, pack: Pack, outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Returns the outputs of all response tokens `[R]` from those of a context-parallel rank `[R']`."""
        if pack.own_responses is None or self._group is None:
            return outputs
        table = torch.stack(outputs)
        table = GatherResponses.apply(table, pack.own_responses, sum(pack.response_lengths), self._group)
        return tuple(table)


def _mtp_inputs(pack: Pack, chunk: int) -> MtpInputs:
    """Returns what the layer is asked; the logits of `chunk` tokens exist at a time."""
    assert pack.paths is None and pack.own_responses is None, "the rules refuse cut and shared sequences"
    rows = (pack.rows - 1).clamp(min=0)
    return MtpInputs(pack.positions == 0, HeadQuery(rows, pack.targets, 1.0, chunk, hits=True))


def _mtp_outputs(pack: Pack, log_probs: torch.Tensor, hits: torch.Tensor) -> MtpOutputs:
    """Returns the layer's answers. The second token of a sequence has no prediction, because no hidden state
    is two tokens before it: its log-prob and hit are 0.
    """
    is_predicted = pack.positions[pack.rows] > 0
    return MtpOutputs(log_probs.where(is_predicted, 0.0), hits.where(is_predicted, 0.0))


def mtp_loss(outputs: MtpOutputs, batch: LossBatch, meter: Meter) -> torch.Tensor:
    """Returns the layer's loss, and adds it and the share of its hits to the metrics."""
    loss = -(outputs.log_probs * batch.weights).sum()
    meter.add({"train/mtp_loss": loss.detach(), "train/mtp_accuracy": (outputs.hits * batch.weights).sum()})
    return loss
