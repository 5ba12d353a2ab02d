"""Schedules of torch.distributed.pipelining over the stages of this rank, with shapes known ahead."""

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

from rlrun.runner.trainer.model.decoder import PackedDecoder
from rlrun.specs.sections.trainer import ONE_STAGE_SCHEDULES, ParallelSpec

Schedule: TypeAlias = _PipelineSchedule
LastStage = Callable[[int, tuple[torch.Tensor, torch.Tensor]], torch.Tensor]
"""Computes the loss from a micro-batch's number and the last stage's outputs."""

_FORWARD = (
    _ComputationType.FORWARD,
    _ComputationType.SEND_F,
    _ComputationType.RECV_F,
    _ComputationType.UNSHARD,
    _ComputationType.RESHARD,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The shapes that a schedule is made for; other shapes need another schedule."""

    micro_batches: int
    tokens: int
    """The number of tokens of a micro-batch on this rank."""
    hidden: tuple[int, int, int]
    """The shape of the hidden states that stages exchange."""
    dtype: torch.dtype


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

    def loss(outputs: tuple[torch.Tensor, torch.Tensor], place: torch.Tensor) -> torch.Tensor:
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
        output_args=hidden if stage < stages - 1 else (hidden, hidden),
        group=group,
    )


def _forward_only(actions: Sequence[_Action]) -> list[_Action]:
    """Returns the forward actions: schedules with several stages would also run backward passes in eval."""
    single_actions: list[Any] = []
    for action in actions:
        single_actions += action.sub_actions or [action]  # an overlapped forward and backward is one action
    return [action for action in single_actions if action.computation_type in _FORWARD]
