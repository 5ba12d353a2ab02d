"""Distributed checkpoints: parameters, experts' balancing biases, optimizer state, step.

Each rank writes its own parts under names and global shapes that do not depend on the layout, so a run can
resume on another number of ranks.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

from rlrun.converters.families.lora import BASE_KINDS, LORA_BASE, LORA_SCALE
from rlrun.converters.folders.checksums import Digests
from rlrun.converters.quantised.int4 import INT4_GROUP
from rlrun.models.adapters import LoraShape
from rlrun.models.architecture import MTP_PROJECTION
from rlrun.runner.trainer.checkpoints.checksummed_files import CheckpointReader, HashedFiles
from rlrun.runner.trainer.checkpoints.restore_checks import (
    check_adapters,
    check_base,
    check_rounding,
    check_scale,
)
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.runner.trainer.parameters.parameters import EXPERT_BIAS

logger = logging.getLogger(__name__)

_UPDATES = "updates"
"""The count of Adam's bias correction; only checkpoints with an optimizer have it."""
ROUTER = ".moe.router.gate.weight"
"""The names of routers' matrices end in this."""


def training_state(
    parameters: Mapping[str, torch.Tensor],
    optimizer: Optimizer | None,
    step: int,
    *,
    lora: LoraShape | None = None,
    int4_group: int | None = None,
) -> dict[str, torch.Tensor]:
    """Returns everything that `load_checkpoint` reads. `optimizer`: None if its state is not saved.
    `int4_group`: the group in which matrices are rounded, which conversions read too.
    """
    state = weights_state(parameters) | {"step": torch.tensor(step)}
    if optimizer is not None:
        state |= _tensors(parameters, optimizer) | {_UPDATES: optimizer.updates}
    if int4_group is not None:
        state[INT4_GROUP] = torch.tensor(int4_group)
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
    optimizer: Optimizer | None,
    *,
    lora: LoraShape | None = None,
    int4_group: int | None = None,
    may_lack_optimizer: bool = False,
) -> int:
    """Loads parameters and optimizer (None: parameters alone); returns the number of optimizer steps so far.
    `may_lack_optimizer`: the optimizer stays empty if the checkpoint has none.

    Raises ValueError if the checkpoint is incomplete, damaged, of another model, has other adapters than
    `lora` describes, or other matrices than those rounded in groups of `int4_group`.
    """
    reader, stored = _open(folder)
    if optimizer is not None and _UPDATES not in stored:
        if not may_lack_optimizer:
            raise ValueError(
                f"checkpoint {folder} has no optimizer state (checkpoint.optimizer = false): set "
                "checkpoint.start_optimizer = false"
            )
        logger.warning("%s has no optimizer state: the optimizer starts empty", folder)
        optimizer = None
    state = weights_state(parameters) if optimizer is None else _tensors(parameters, optimizer)
    shapes = {key: tuple(tensor.shape) for key, tensor in state.items()}
    check_adapters(folder, shapes, stored, lora=lora is not None)
    _check(folder, state, stored)
    check_rounding(folder, _read_number(reader, folder, stored, INT4_GROUP), int4_group)
    if lora is not None:
        scale = torch.tensor(0.0, dtype=torch.float64)
        _read(reader, folder, {LORA_SCALE: scale})
        check_scale(folder, float(scale), lora)
        base = _read_number(reader, folder, stored, LORA_BASE)
        check_base(folder, None if base is None else BASE_KINDS[base], lora)
    step, updates = torch.tensor(0), torch.tensor(0.0)
    state |= {"step": step} | ({} if optimizer is None else {_UPDATES: updates})
    _read(reader, folder, state)
    if optimizer is not None:
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


def _read_number(reader: CheckpointReader, folder: Path, stored: Mapping[str, Any], name: str) -> int | None:
    """Returns an integer of a checkpoint; None if the checkpoint does not contain it."""
    if name not in stored:
        return None
    number = torch.tensor(0)
    _read(reader, folder, {name: number})
    return int(number)


def _tensors(parameters: Mapping[str, torch.Tensor], optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Returns parameters and their optimizer state by name."""
    state = optimizer.tensors()
    return weights_state(parameters) | {
        key: state[key] for key in state if key.partition(".")[2] in parameters
    }


def _check(folder: Path, state: Mapping[str, torch.Tensor], stored: Mapping[str, Any]) -> None:
    """Raises ValueError if the checkpoint is not of this model."""
    _check_biases(folder, state, stored)
    _check_mtp(folder, state, stored)
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


def _check_mtp(folder: Path, state: Mapping[str, torch.Tensor], stored: Mapping[str, Any]) -> None:
    """Raises ValueError if an MTP layer is in the checkpoint or in this job, but not in both."""
    end = f".{MTP_PROJECTION}.weight"
    was_trained, is_trained = (any(name.endswith(end) for name in names) for names in (stored, state))
    if was_trained != is_trained:
        cure = "set a weight" if was_trained else "remove it"
        raise ValueError(
            f"checkpoint {folder} was saved with{'' if was_trained else 'out'} trainer.mtp_loss: {cure}, or "
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
