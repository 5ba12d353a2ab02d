"""The policy on the stages of a pipeline: all micro-batches of an optimizer step in one run of a schedule.

All micro-batches of a run have the same number of tokens, because stages exchange tensors of one shape. Every
optimizer step is one run, because torch's schedules drop the gradients of an earlier run when they start.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.pipelining.schedules import (
    _Action,
    _ComputationType,
    _PipelineSchedule,
    _PipelineScheduleRuntime,
    get_schedule_class,
)

from rlrun.models.architecture import Architecture
from rlrun.runner.contracts.carriers import Output, TrainSequence
from rlrun.runner.planning.rank_layout import schedulable_micro_batches, stages_of_rank
from rlrun.runner.trainer.compat.data_parallel import reshard
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.model.decoder import DecoderInputs, PackedDecoder, place_of
from rlrun.runner.trainer.passes.packed_batch import Pack, common_size
from rlrun.runner.trainer.passes.packed_model import (
    LossOf,
    ModelSettings,
    PackedModel,
    Routes,
)
from rlrun.runner.trainer.passes.stopwatch import Stopwatch
from rlrun.runner.trainer.transfers import to_host
from rlrun.specs.sections.trainer import ONE_STAGE_SCHEDULES, ParallelSpec

Schedule: TypeAlias = _PipelineSchedule
LastStage = Callable[[int, tuple[torch.Tensor, ...]], torch.Tensor]
"""Computes the loss from a micro-batch's number and the last stage's outputs."""
_FORWARD = (
    _ComputationType.FORWARD,
    _ComputationType.SEND_F,
    _ComputationType.RECV_F,
    _ComputationType.UNSHARD,
    _ComputationType.RESHARD,
)


class PipelinedModel(PackedModel):
    """A `PackedModel` on a pipeline: only the ranks of the last stage have log-probs and losses."""

    def __init__(
        self,
        decoders: Sequence[PackedDecoder],
        model: Architecture,
        dims: ParallelDims,
        settings: ModelSettings,
    ) -> None:
        """`dims` must have a pipeline axis."""
        super().__init__(decoders, model, dims, settings)
        parallel = settings.parallel
        self._group_of_stages = dims.get_mesh("pp").get_group()
        self._stages = stages_of_rank(dist.get_rank(self._group_of_stages), parallel)
        self._hidden = model.hidden
        self._split = dims.tp if parallel.sequence_parallel else 1
        self._schedules: dict[bool, tuple[Shape, Schedule]] = {}
        self._last: LastStage | None = None

    @property
    def has_losses(self) -> bool:
        """Whether this rank has the last stage."""
        return self._settings.parallel.stages - 1 in self._stages

    def outputs(
        self,
        batches: Sequence[Sequence[TrainSequence]],
        names: Sequence[Output],
        routes: Routes | None = None,
    ) -> list[tuple[torch.Tensor, ...]]:
        """As `PackedModel.outputs`; an empty list on ranks without the last stage."""
        results: dict[int, tuple[torch.Tensor, ...]] = {}
        packs = self._packs(batches)

        def keep(index: int, outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
            table = self.stacked(self.all_responses(packs[index], outputs), names)
            results[index] = to_host(table).split(packs[index].response_lengths, dim=1)
            return table.sum()

        inputs = [self.output_inputs(pack, names, note=routes is not None) for pack in packs]
        with torch.no_grad():
            self._run(packs, inputs, keep, train=False, outputs=self.num_outputs(names))
        if routes is not None:
            # not strict: packs without sequences, which complete a schedule, are at the end
            filled = zip(batches, packs, inputs, strict=False)
            routes += [self.routes(sequences, pack, own) for sequences, pack, own in filled]
        reshard(self.decoders)
        return [results[index] for index in range(len(batches))] if self.has_losses else []

    def accumulate(
        self,
        batches: Sequence[Sequence[TrainSequence]],
        loss_of: LossOf,
        entropy_grad: bool,
        stopwatch: Stopwatch,
    ) -> None:
        """As `PackedModel.accumulate`; `perf/pipeline_time` is the time of both passes, which overlap."""
        packs = self._packs(batches)

        def loss(index: int, outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
            log_probs, entropy, *divergence = self.all_responses(packs[index], outputs)
            if index < len(batches):
                return loss_of(index, log_probs, entropy, None, *divergence)
            return log_probs.sum()  # a pack without sequences: 0, with a gradient

        with stopwatch.part("perf/pipeline_time"):
            inputs = [self.loss_inputs(pack, entropy_grad) for pack in packs]
            outputs = 2 if self._settings.comparison is None else 3
            self._run(packs, inputs, loss, train=True, outputs=outputs)
            reshard(self.decoders)

    def _packs(self, batches: Sequence[Sequence[TrainSequence]]) -> list[Pack]:
        """Returns packs of one size, as many as the schedule needs; the last ones may be empty."""
        empty = schedulable_micro_batches(len(batches), self._settings.parallel) - len(batches)
        size = common_size(batches, self.multiple, share=self._settings.share)
        return [self.pack(sequences, size) for sequences in [*batches, *([()] * empty)]]

    def _run(
        self,
        packs: Sequence[Pack],
        inputs: Sequence[DecoderInputs],
        last: LastStage,
        *,
        train: bool,
        outputs: int = 2,
    ) -> None:
        """Runs the schedule once; `last` is called with the outputs of the last stage, so many of them."""
        for decoder in self.decoders:
            decoder.inputs = inputs
        places = [place_of(index, self.device) for index in range(len(packs))]
        schedule, self._last = self._schedule(packs, train, outputs), last
        try:
            with self._context():
                schedule.step(
                    arg_mbs=[(pack.tokens,) for pack in packs] if 0 in self._stages else None,
                    kwarg_mbs=[{"place": place} for place in places],
                    target_mbs=places if self.has_losses else None,
                    return_outputs=False,
                )
        finally:
            self._last = None
            for decoder in self.decoders:
                decoder.inputs = ()

    def _schedule(self, packs: Sequence[Pack], train: bool, outputs: int) -> Schedule:
        """Returns the schedule of the last run where the shapes are the same, else a new one."""
        tokens = packs[0].tokens.shape[1]
        hidden = (1, tokens // self._split, self._hidden)
        shape = Shape(len(packs), tokens, hidden, self._settings.dtype, outputs)
        if train not in self._schedules or self._schedules[train][0] != shape:
            schedule = make_schedule(
                self._settings.parallel,
                self.decoders,
                self._stages,
                shape,
                self._on_last_stage,
                self._group_of_stages,
                self.device,
                train=train,
            )
            self._schedules[train] = shape, schedule
        return self._schedules[train][1]

    def _on_last_stage(self, index: int, outputs: tuple[torch.Tensor, ...]) -> torch.Tensor:
        assert self._last is not None, "outside a run"
        return self._last(index, outputs)


def make_packed_model(
    decoders: Sequence[PackedDecoder],
    model: Architecture,
    dims: ParallelDims | None,
    settings: ModelSettings,
) -> PackedModel:
    """Returns the model of decoders that `build_model` made, on a pipeline or not."""
    if dims is None or dims.pp == 1:
        return PackedModel(decoders, model, dims, settings)
    return PipelinedModel(decoders, model, dims, settings)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shapes that a schedule is made for; other shapes need another schedule."""

    micro_batches: int
    tokens: int
    """The number of tokens of a micro-batch on this rank."""
    hidden: tuple[int, int, int]
    """The shape of the hidden states that stages exchange."""
    dtype: torch.dtype
    outputs: int = 2
    """The number of tensors that the last stage returns."""


def make_schedule(  # noqa: PLR0917
    parallel: ParallelSpec,
    decoders: Sequence[PackedDecoder],
    stages: Sequence[int],
    shape: Shape,
    last: LastStage,
    group: dist.ProcessGroup,
    device: torch.device,
    *,
    train: bool,
) -> Schedule:
    """Returns a schedule of `parallel.pipeline_schedule`; without `train` only its forward passes.

    Stages get the shapes in advance. Otherwise torch would run a micro-batch to infer them, and drop the
    gradients that exist.
    """

    def loss(outputs: tuple[torch.Tensor, ...], place: torch.Tensor) -> torch.Tensor:
        return last(len(place), outputs)

    pipeline_stages = [
        _stage(decoder, stage, parallel.stages, shape, group, device)
        for decoder, stage in zip(decoders, stages, strict=True)
    ]
    kind = get_schedule_class(parallel.pipeline_schedule)
    one_stage = parallel.pipeline_schedule in ONE_STAGE_SCHEDULES
    if one_stage and not train:
        kind = ScheduleGPipe
    schedule: Schedule = kind(
        pipeline_stages[0] if one_stage else pipeline_stages,
        n_microbatches=shape.micro_batches,
        loss_fn=loss,
        scale_grads=False,
    )
    schedule._has_backward = train  # as Schedule.eval does, which would also concatenate the outputs
    if not train and isinstance(schedule, _PipelineScheduleRuntime):
        schedule.pipeline_order_with_comms = {
            rank: _forward_only(actions) for rank, actions in schedule.pipeline_order_with_comms.items()
        }
    return schedule


def _stage(  # noqa: PLR0917
    decoder: PackedDecoder,
    stage: int,
    stages: int,
    shape: Shape,
    group: dist.ProcessGroup,
    device: torch.device,
) -> PipelineStage:
    hidden = torch.empty(shape.hidden, dtype=shape.dtype, device="meta", requires_grad=True)
    tokens = torch.empty(1, shape.tokens, dtype=torch.int64, device="meta")
    return PipelineStage(
        decoder,
        stage,
        stages,
        device,
        input_args=hidden if stage else tokens,
        # torch checks only how many outputs the last stage has
        output_args=hidden if stage < stages - 1 else (hidden,) * shape.outputs,
        group=group,
    )


def _forward_only(actions: Sequence[_Action]) -> list[_Action]:
    """Returns the forward actions: schedules with several stages would also run backward passes in eval."""
    single_actions: list[Any] = []
    for action in actions:
        single_actions += action.sub_actions or [action]  # an overlapped forward and backward is one action
    return [action for action in single_actions if action.computation_type in _FORWARD]
