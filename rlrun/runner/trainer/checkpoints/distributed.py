"""Distributed checkpoints: parameters, experts' balancing biases, optimizer state, step, random states.

Each rank writes its own parts under names and global shapes that do not depend on the layout, so a run can
resume on another number of ranks. Random states are per rank: a rank that the checkpoint does not contain
keeps its current one.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

from rlrun.converters.families.lora import BASE_KINDS, LORA_BASE, LORA_SCALE
from rlrun.converters.folders.checksums import Digests
from rlrun.models.adapters import LoraShape
from rlrun.runner.trainer.checkpoints.checksummed_files import CheckpointReader, HashedFiles
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.runner.trainer.parameters.parameters import EXPERT_BIAS

ROUTER = ".moe.router.gate.weight"
"""The names of routers' matrices end in this."""
ADAPTER = ".lora_"
_FACTORS = "parameters."


def training_state(
    parameters: Mapping[str, torch.Tensor],
    optimizer: Optimizer,
    step: int,
    rank: int,
    *,
    lora: LoraShape | None = None,
) -> dict[str, torch.Tensor]:
    """Returns everything that `load_checkpoint` reads."""
    state = _tensors(parameters, optimizer) | {
        "step": torch.tensor(step),
        "updates": optimizer.updates,
        f"random.{rank}": torch.get_rng_state(),
    }
    if lora is None:
        return state
    if lora.base is not None:
        state[LORA_BASE] = torch.tensor(BASE_KINDS.index(lora.base))
    return state | {LORA_SCALE: torch.tensor(lora.scale, dtype=torch.float64)}


def weights_state(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns everything that `load_weights` reads: only parameters."""
    return {f"parameters.{name}": parameter.detach() for name, parameter in parameters.items()}


def load_weights(folder: Path, parameters: Mapping[str, torch.Tensor]) -> None:
    """Fills parameters from a written `weights_state`, also on another layout. ValueError as for
    `load_checkpoint`.
    """
    state = weights_state(parameters)
    reader, stored = _open(folder)
    _check(folder, state, stored)
    _read(reader, folder, state)


def write_state(
    folder: Path, state: dict[str, torch.Tensor], group: dist.ProcessGroup | None = None
) -> Digests:
    """Writes the state of all ranks into `folder`, as a collective of `group` (None: the default group).

    Returns the checksums of the files that this rank wrote. An OSError of any rank (a full disk) is raised
    on every rank.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = FileSystemWriter(folder, sync_files=True)
    writer.fs = files = HashedFiles()
    try:
        dcp.save(state, storage_writer=writer, process_group=group, no_dist=not dist.is_initialized())
    except CheckpointException as failure:
        raise _unwritten(failure, folder) from failure
    return files.digests


def load_checkpoint(
    folder: Path,
    parameters: Mapping[str, torch.Tensor],
    optimizer: Optimizer,
    rank: int,
    *,
    lora: LoraShape | None = None,
) -> int:
    """Loads parameters, optimizer and random state; returns the number of optimizer steps so far.

    Raises ValueError if the checkpoint is incomplete, damaged, of another model, or has other adapters than
    `lora` describes.
    """
    reader, stored = _open(folder)
    state = _tensors(parameters, optimizer)
    check_adapters(folder, {key: tuple(tensor.shape) for key, tensor in state.items()}, stored)
    _check(folder, state, stored)
    scale = torch.tensor(0.0, dtype=torch.float64)
    if lora is not None:
        _read(reader, folder, {LORA_SCALE: scale})
        check_scale(folder, float(scale), lora)
        number = torch.tensor(0)
        if LORA_BASE in stored:
            _read(reader, folder, {LORA_BASE: number})
        check_base(folder, BASE_KINDS[int(number)] if LORA_BASE in stored else None, lora)
    step, updates, random = torch.tensor(0), torch.tensor(0.0), torch.get_rng_state()
    state |= {"step": step, "updates": updates}
    if f"random.{rank}" in stored:
        state[f"random.{rank}"] = random
    _read(reader, folder, state)
    torch.set_rng_state(random)
    optimizer.updates = updates
    return int(step)


def _open(folder: Path) -> tuple[CheckpointReader, Mapping[str, Any]]:
    reader = CheckpointReader(folder)
    try:
        return reader, reader.read_metadata().state_dict_metadata
    except OSError as error:
        raise ValueError(f"{folder} is not a complete checkpoint: {error}") from None


def _read(reader: CheckpointReader, folder: Path, state: dict[str, torch.Tensor]) -> None:
    try:
        dcp.load(state, storage_reader=reader, no_dist=not dist.is_initialized())
    except CheckpointException as failure:
        raise _unread(failure, folder) from failure


def _tensors(parameters: Mapping[str, torch.Tensor], optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Returns parameters and their optimizer state by name."""
    state = optimizer.tensors()
    return weights_state(parameters) | {
        key: state[key] for key in state if key.partition(".")[2] in parameters
    }


def _check(folder: Path, state: Mapping[str, torch.Tensor], stored: Mapping[str, Any]) -> None:
    """Raises ValueError if the checkpoint is not of this model."""
    _check_biases(folder, state, stored)
    for name, tensor in state.items():
        if name not in stored:
            kind, _, parameter = name.partition(".")
            if kind != "parameters" and f"parameters.{parameter}" in stored:
                raise ValueError(
                    f"checkpoint {folder} was saved with another trainer.optimizer: it lacks {name}. Set the "
                    "optimizer that the run began with (adamw_8bit: also trainer.parallel, because some "
                    "layouts split matrices so that their state is not held in 8 bits)"
                )
            raise ValueError(f"checkpoint {folder} is of another model: it lacks {name}")
        if tuple(stored[name].size) != tuple(tensor.shape):
            raise ValueError(
                f"checkpoint {folder} is of another model: {name} has shape {tuple(stored[name].size)}, "
                f"in this model {tuple(tensor.shape)}"
            )


def check_adapters(folder: Path, shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, Any]) -> None:
    """Raises ValueError if a checkpoint has other adapters than a job, whose state has these `shapes`."""
    ours, theirs = ({key for key in keys if key.startswith(_FACTORS)} for keys in (shapes, stored))
    ours, theirs = ({key for key in keys if ADAPTER in key} for keys in (ours, theirs))
    if bool(ours) != bool(theirs):
        has, cure = ("no adapters", "remove") if ours else ("adapters", "add the run's")
        raise ValueError(f"checkpoint {folder} has {has}: {cure} [trainer.lora], or start another run")
    missing = _matrices(ours - theirs)
    further = _matrices(theirs) - _matrices(ours)  # a pipeline stage has only its layers' adapters
    if targets := missing or further:
        raise ValueError(
            f"checkpoint {folder} was saved with other trainer.lora.targets: it "
            f"{'lacks' if missing else 'also has'} adapters of {', '.join(sorted(targets))}. Set the "
            "targets that the run began with, or start another run"
        )
    for key in sorted(ours):
        if ".lora_a" not in key:
            continue
        dimension = 0 if key.endswith(".weight") else -1  # experts' factors have the rank last
        rank, ours_rank = stored[key].size[dimension], shapes[key][dimension]
        if rank != ours_rank:
            raise ValueError(
                f"checkpoint {folder} was saved with trainer.lora.rank = {rank}, found {ours_rank}: set "
                f"it to {rank}, or start another run"
            )


def check_scale(folder: Path, stored: float, lora: LoraShape) -> None:
    """Raises ValueError if the adapters of a checkpoint were multiplied by another factor."""
    if stored != lora.scale:
        raise ValueError(
            f"checkpoint {folder} was saved with adapters times {stored:g}, and trainer.lora.alpha = "
            f"{lora.alpha:g}, rank = {lora.rank}, rslora = {str(lora.rslora).lower()} multiply by "
            f"{lora.scale:g}: set the values that the run began with, or start another run"
        )


def check_base(folder: Path, stored: str | None, lora: LoraShape) -> None:
    """Raises ValueError if the adapters of a checkpoint were trained beside a base in another precision."""
    if stored != lora.base:
        was, now = (f'"{kind}"' if kind else "not set" for kind in (stored, lora.base))
        raise ValueError(
            f"checkpoint {folder} was saved with trainer.lora.base {was}, found {now}: set the base that the "
            "run began with, or start another run"
        )


def _matrices(keys: Iterable[str]) -> set[str]:
    """Returns the names of the matrices that adapters' tensors of a checkpoint belong to."""
    parts = [key.partition(ADAPTER) for key in keys]
    return {
        matrix.rpartition(".")[2] if factor.endswith(".weight") else f"experts.{factor[2:]}_proj"
        for matrix, _, factor in parts
    }


def _check_biases(folder: Path, state: Mapping[str, torch.Tensor], stored: Mapping[str, Any]) -> None:
    """Raises ValueError if balancing biases are in the checkpoint or in this job, but not in both."""
    for gate in [name for name in state if name.startswith("parameters.") and name.endswith(ROUTER)]:
        bias = gate.removesuffix(ROUTER) + EXPERT_BIAS
        if (bias in state) != (bias in stored) and gate in stored:
            was = "bias" if bias in stored else "off"
            raise ValueError(
                f'checkpoint {folder} was saved with trainer.moe.balancing = "{was}": set it so, or '
                "start another run from an export of the model"
            )


def _unwritten(failure: CheckpointException, folder: Path) -> Exception:
    """Returns an OSError of any rank as it is, and anything else as a ValueError."""
    error = _first_error(failure)
    if isinstance(error, OSError):
        return error
    return ValueError(f"checkpoint {folder} cannot be written: {error}")


def _unread(failure: CheckpointException, folder: Path) -> Exception:
    """Returns an OSError as it is, and a missing or damaged file as a ValueError."""
    error = _first_error(failure)
    if isinstance(error, FileNotFoundError):
        defect = f"lacks {Path(str(error.filename)).name}"
    elif isinstance(error, OSError):
        return error
    else:
        defect = f"is damaged, perhaps cut short ({str(error) or type(error).__name__})"
    return ValueError(
        f"checkpoint {folder} {defect}; delete that step's folder to continue from an earlier checkpoint"
    )


def _first_error(failure: CheckpointException) -> BaseException:
    """Returns the error that the first failing rank raised: torch wraps it several times."""
    error: BaseException = next(iter(failure.failures.values()))[0]
    while error.__cause__ is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error
