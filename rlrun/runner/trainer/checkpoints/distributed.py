"""Distributed checkpoints: parameters (and biases of experts that move), optimizer state, step, and the
random state of every rank.

Each rank writes what it holds, under names and global shapes that no layout is part of; so a checkpoint
resumes on another number of ranks. Random states are per rank: a rank the checkpoint doesn't know keeps its
own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

from rlrun.converters.folders.checksums import Digests
from rlrun.runner.trainer.checkpoints.checksummed_files import CheckpointReader, HashedFiles
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.runner.trainer.parameters.parameters import EXPERT_BIAS

ROUTER = ".moe.router.gate.weight"
"""How the names of routers' matrices end."""


def training_state(
    parameters: Mapping[str, torch.Tensor], optimizer: Optimizer, step: int, rank: int
) -> dict[str, torch.Tensor]:
    """Everything that `load_checkpoint` reads, as it is now."""
    return _tensors(parameters, optimizer) | {
        "step": torch.tensor(step),
        "updates": optimizer.updates,
        f"random.{rank}": torch.get_rng_state(),
    }


def weights_state(parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Everything that `load_weights` reads: parameters alone."""
    return {f"parameters.{name}": parameter.detach() for name, parameter in parameters.items()}


def load_weights(folder: Path, parameters: Mapping[str, torch.Tensor]) -> None:
    """Fill parameters from a written `weights_state`, also on another layout. ValueError as for a whole
    checkpoint.
    """
    state = weights_state(parameters)
    reader, stored = _open(folder)
    _check(folder, state, stored)
    _read(reader, folder, state)


def write_state(
    folder: Path, state: dict[str, torch.Tensor], group: dist.ProcessGroup | None = None
) -> Digests:
    """Writes into `folder`; all ranks together, by way of `group` (None: the default group). Returns the
    checksums of all files that this rank wrote. An OSError of any rank (a full disk) is raised as such.
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
    folder: Path, parameters: Mapping[str, torch.Tensor], optimizer: Optimizer, rank: int
) -> int:
    """Fill parameters and optimizer, set the random state, and return the number of optimizer steps taken."""
    reader, stored = _open(folder)
    state = _tensors(parameters, optimizer)
    _check(folder, state, stored)
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
        raise ValueError(f"{folder} is no complete checkpoint: {error}") from None


def _read(reader: CheckpointReader, folder: Path, state: dict[str, torch.Tensor]) -> None:
    try:
        dcp.load(state, storage_reader=reader, no_dist=not dist.is_initialized())
    except CheckpointException as failure:
        raise _unread(failure, folder) from failure


def _tensors(parameters: Mapping[str, torch.Tensor], optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Parameters and their optimizer state by name."""
    held = {f"parameters.{name}": parameter.detach() for name, parameter in parameters.items()}
    state = optimizer.tensors()
    return held | {key: state[key] for key in state if key.partition(".")[2] in parameters}


def _check(folder: Path, state: Mapping[str, torch.Tensor], stored: Mapping[str, Any]) -> None:
    """The checkpoint must be this model's."""
    _check_biases(folder, state, stored)
    for name, tensor in state.items():
        if name not in stored:
            raise ValueError(f"checkpoint {folder} is another model's: it lacks {name}")
        if tuple(stored[name].size) != tuple(tensor.shape):
            raise ValueError(
                f"checkpoint {folder} is another model's: {name} has shape {tuple(stored[name].size)}, "
                f"this model's is {tuple(tensor.shape)}"
            )


def _check_biases(folder: Path, state: Mapping[str, torch.Tensor], stored: Mapping[str, Any]) -> None:
    """Experts that were evened out need their biases, and no others do."""
    for gate in [name for name in state if name.startswith("parameters.") and name.endswith(ROUTER)]:
        bias = gate.removesuffix(ROUTER) + EXPERT_BIAS
        if (bias in state) != (bias in stored) and gate in stored:
            was = "bias" if bias in stored else "off"
            raise ValueError(
                f'checkpoint {folder} was saved with trainer.moe.balancing = "{was}": go on with that, or '
                "start another run from an export"
            )


def _unwritten(failure: CheckpointException, folder: Path) -> Exception:
    """An OSError of any rank as such; else what torch says."""
    error = _first_error(failure)
    if isinstance(error, OSError):
        return error
    return ValueError(f"checkpoint {folder} cannot be written: {error}")


def _unread(failure: CheckpointException, folder: Path) -> Exception:
    """An OSError as such, unless a file is not there; else what is wrong with the checkpoint."""
    error = _first_error(failure)
    if isinstance(error, FileNotFoundError):
        what = f"lacks {Path(str(error.filename)).name}"
    elif isinstance(error, OSError):
        return error
    else:
        what = f"is damaged, cut short perhaps ({str(error) or type(error).__name__})"
    return ValueError(
        f"checkpoint {folder} {what}; without that step's folder a run goes on from an earlier one"
    )


def _first_error(failure: CheckpointException) -> BaseException:
    """The first rank's own: torch wraps them all."""
    error: BaseException = next(iter(failure.failures.values()))[0]
    while error.__cause__ is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error
