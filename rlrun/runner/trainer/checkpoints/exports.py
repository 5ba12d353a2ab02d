"""The policy's weights outside of the trainer: for the engines, and as a Hugging Face folder."""

from collections.abc import Callable, Collection, Iterator, Sequence
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
from rlrun.runner.trainer.compat.meshes import local_part
from rlrun.runner.trainer.parameters.gathering import Present, as_it_is
from rlrun.runner.trainer.parameters.parameters import Parameters
from rlrun.runner.weights.carriers.table import carrier_for
from rlrun.runner.weights.rank_weights import RankAdapters, RankWeights, Stages
from rlrun.runner.weights.writer import Writer
from rlrun.specs.derived.lora_sync import sends_adapters
from rlrun.specs.derived.policy_model import drafts_with_mtp, frozen_tower
from rlrun.specs.derived.weight_sync import buckets_on_gpus, relay_slices
from rlrun.specs.sections.job import Spec

_Tensors = Iterator[tuple[str, torch.Tensor]]
_Gather = Callable[[torch.dtype | None], _Tensors]


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
    gather: _Gather = partial(parameters.gather, present=present, names=sent)
    gather_stage: _Gather = partial(parameters.gather_stage, present=present, names=sent)
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
    moved = _MovedWeights(_second_factors(parameters), second, list(shapes)[-1], as_it_is)
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
    gathers: tuple[_Gather, _Gather], rank: int, spec: Spec, parameters: Parameters, present: Present
) -> tuple[_Gather, _Gather]:
    """Returns the functions that gather an update, whose merged matrices are compared with the last one's."""
    factors, matrices = _second_factors(parameters), parameters.adapted
    own_stage = coordinates(rank, spec.trainer.parallel).pipeline
    stage_names = [name for name, stage in parameters.stage_of.items() if stage == own_stage]
    whole = _MovedWeights(factors, matrices, list(parameters.shapes)[-1], present)
    staged = _MovedWeights(factors, matrices, stage_names[-1], present)
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


class _MovedWeights:
    """Compares the merged matrices of one update with those of the update before.

    An engine that is sent the frozen model at every update generates from the first policy for the whole run,
    which looks like staleness (verl's issue 7495). So each update is compared with the one before it:

        second factors changed since the last update, on this rank ─┬─▶ some tensor must differ, or an error
        sums of the bits of each merged matrix that is sent, or of  │
        each second factor where adapters are sent alone ───────────┘

    Only second factors count: the first ones may decay while the second are still zero, which changes no
    matrix.
    """

    def __init__(
        self, factors: Sequence[torch.Tensor], matrices: Collection[str], last: str, present: Present
    ) -> None:
        """`factors` are the adapters' second factors, which `present` makes readable. `matrices` are the
        Hugging Face names of the adapted matrices, and `last` is that of the last tensor of an update.
        """
        self._factors, self._matrices, self._last = factors, matrices, last
        self._present = present
        self._trained: list[int] | None = None
        self._sent: list[int] = []

    def watch(self, gather: _Gather, dtype: torch.dtype | None = None) -> _Tensors:
        """Yields the gathered tensors. Raises RuntimeError before the last one, if the adapters have changed
        and no matrix has.
        """
        trained = [_bit_sum(self._present(factor)) for factor in self._factors]
        sent: list[torch.Tensor] = []
        for name, tensor in gather(dtype):
            if name in self._matrices and len(tensor):
                sent.append(_bit_sum(tensor))
            if name == self._last:
                self._compare(_read(trained), _read(sent))
            yield name, tensor

    def _compare(self, trained: list[int], sent: list[int]) -> None:
        if self._trained not in (None, trained) and sent and sent == self._sent:
            raise RuntimeError(
                "the adapters were trained since the last update of the engines, but what is sent has not "
                "changed: engines would go on generating from an old policy. If the learning rate is so low "
                "that engine.dtype rounds every change away, raise it"
            )
        self._trained, self._sent = trained, sent


def _bit_sum(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the sum of a tensor's elements as integers, which changes if a few of them change: a scalar on
    its device.
    """
    part = local_part(tensor).detach().contiguous()
    integers = part.view({2: torch.int16, 4: torch.int32}[part.itemsize])
    return integers.sum(dtype=torch.int64)


def _read(sums: Sequence[torch.Tensor]) -> list[int]:
    """Returns the sums; the host waits for the device once for all of them."""
    return torch.stack(list(sums)).tolist() if sums else []
