"""The policy's weights outside of the trainer: for the engines, and as a Hugging Face folder."""

from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from rlrun.converters.families.adapter_folder import write_adapter
from rlrun.converters.families.model_folder import write_folder
from rlrun.models.adapters import adapters
from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import mtp_tensors
from rlrun.runner.contracts.carriers import TrainerSetup
from rlrun.runner.planning.rank_layout import coordinates
from rlrun.runner.trainer.parameters.gathering import Present, as_it_is
from rlrun.runner.trainer.parameters.moved_weights import Gather, MovedWeights
from rlrun.runner.trainer.parameters.parameters import Parameters
from rlrun.runner.weights.carriers.table import carrier_for
from rlrun.runner.weights.rank_weights import RankAdapters, RankWeights
from rlrun.runner.weights.stages import Stages
from rlrun.runner.weights.writer import Writer
from rlrun.specs.derived.lora_sync import sends_adapters
from rlrun.specs.derived.policy_model import drafts_with_mtp, frozen_tower
from rlrun.specs.derived.weight_sync import buckets_on_gpus, relay_slices
from rlrun.specs.sections.job import Spec


def make_writer(
    setup: TrainerSetup,
    spec: Spec,
    model: Architecture,
    parameters: Parameters,
    device: torch.device,
    *,
    present: Present,
) -> Writer:
    """Returns the writer that hands this rank's parameters, or its adapters alone, over to the engines.

    `present` makes parameters readable that were moved off the device. Engines keep a frozen vision tower,
    and get an MTP layer only if they speculate with it.
    """
    if sends_adapters(spec, model.family):
        return _adapter_writer(setup, spec, model, parameters, device)
    patterns = frozen_tower(spec.trainer, model)
    without = frozenset() if drafts_with_mtp(spec) else {tensor.name for tensor in mtp_tensors(model)}
    sent = {
        name: shape
        for name, shape in parameters.shapes.items()
        if name not in without and not any(fnmatchcase(name, pattern) for pattern in patterns)
    }
    gather: Gather = partial(parameters.gather, present=present, names=sent)
    gather_stage: Gather = partial(parameters.gather_stage, present=present, names=sent)
    if spec.trainer.lora is not None:
        gathers = gather, gather_stage
        gather, gather_stage = _checked(gathers, setup.rank, spec, parameters, present)
    return carrier_for(spec).writer(
        spec,
        RankWeights(
            rank=setup.rank,
            model=model,
            shapes=sent,
            gather=gather,
            gather_stage=gather_stage,
            stages=_stages(setup.rank, spec, parameters),
            device=device,
            host=setup.host or setup.master_addr,
            job=_job(spec, setup),
            folder=Path(setup.weights_folder),
            model_folder=Path(spec.engine.model or setup.model_folder),
            engine_process=setup.engine_process,
        ),
    )


def _job(spec: Spec, setup: TrainerSetup) -> str:
    """Returns the name of the job in the names of its shared-memory segments."""
    return f"{spec.name}-{setup.master_port}"


def _adapter_writer(
    setup: TrainerSetup, spec: Spec, model: Architecture, parameters: Parameters, device: torch.device
) -> Writer:
    """Returns the writer of adapters, whose second factors are compared with those of the last update."""
    assert spec.trainer.lora is not None
    shapes = parameters.adapter_shapes
    second = {name for name in shapes if name.endswith(".lora_B.weight")}
    moved = MovedWeights(_second_factors(parameters), second, list(shapes)[-1], as_it_is)
    source = RankAdapters(
        rank=setup.rank,
        model=model,
        shapes=shapes,
        gather=partial(moved.watch, parameters.gather_adapters),
        device=device,
        job=_job(spec, setup),
        folder=Path(setup.weights_folder),
        lora=spec.trainer.lora.shape,
        base_shapes=parameters.shapes,
        base_dtype="bfloat16" if parameters.is_base_bfloat16 else "float32",
        gather_base=parameters.gather_base,
    )
    return carrier_for(spec).adapter_writer(spec, source)


def _second_factors(parameters: Parameters) -> list[torch.Tensor]:
    """Returns the parts of the adapters' second factors that are on this rank."""
    names = sorted(name for name in parameters.adapters if ".lora_b" in name)
    return [parameters.masters[name] for name in names if name in parameters.masters]


def _checked(
    gathers: tuple[Gather, Gather], rank: int, spec: Spec, parameters: Parameters, present: Present
) -> tuple[Gather, Gather]:
    """Returns the functions that gather an update, whose merged matrices are compared with the last one's."""
    factors, matrices = _second_factors(parameters), parameters.adapted
    own_stage = coordinates(rank, spec.trainer.parallel).pipeline
    stage_names = [name for name, stage in parameters.stage_of.items() if stage == own_stage]
    whole = MovedWeights(factors, matrices, list(parameters.shapes)[-1], present)
    staged = MovedWeights(factors, matrices, stage_names[-1], present)
    return partial(whole.watch, gathers[0]), partial(staged.watch, gathers[1])


def _stages(rank: int, spec: Spec, parameters: Parameters) -> Stages:
    position, parallel = coordinates(rank, spec.trainer.parallel), spec.trainer.parallel
    is_first_rank = replace(position, pipeline=0) == coordinates(0, parallel)
    neighbours = None
    if parameters.stages is not None and buckets_on_gpus(spec):
        size = relay_slices(spec)
        neighbours = dist.new_subgroups(size)[0] if size > 1 else None
    return Stages(parameters.stage_of, position.pipeline, is_first_rank, parameters.stages, neighbours)


ADAPTER_FOLDER = "adapter"
"""The folder of the adapter within an exported model."""


def export_folder(
    folder: Path, setup: TrainerSetup, spec: Spec, model: Architecture, parameters: Parameters
) -> None:
    """Writes a Hugging Face folder with the current weights in the source's precision, config and tokenizer.

    If adapters are trained, they are merged into the weights, and also written by themselves for peft. All
    ranks call this together; rank 0 writes.
    """
    tensors = parameters.gather()
    if setup.rank == 0:
        dtype = getattr(torch, model.dtype)
        write_folder(folder, Path(setup.model_folder), model, tensors, parameters.shapes, dtype=dtype)
    for _ in tensors:  # gathering is collective: ranks other than 0 must take part to the end
        pass
    if spec.trainer.lora is None:
        return
    factors, lora = parameters.gather_adapters(), spec.trainer.lora.shape
    if setup.rank == 0:
        write_adapter(folder / ADAPTER_FOLDER, spec.model.path, adapters(model, lora), lora, factors)
    for _ in factors:
        pass
