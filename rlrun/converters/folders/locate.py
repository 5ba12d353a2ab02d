"""Finds the checkpoint at a path: a folder of either format, a run, its `checkpoints/`, or one of its
steps."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rlrun.converters.folders.dcp_folder import is_dcp_folder
from rlrun.converters.folders.hf_folder import is_hf_folder
from rlrun.models.json_files import read_json
from rlrun.specs.step_names import step_of

_MEGATRON_STEP = "iter_"
"""The names of the folders of Megatron's steps begin with this."""

Format = Literal["hf", "dcp"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint on disk."""

    folder: Path
    format: Format
    step: int | None = None
    """Step of the run that wrote it; None for a checkpoint without a run."""
    model: Path | None = None
    """Folder with its config.json and tokenizer; None if it is unknown."""


def find_checkpoint(path: Path, step: str | None = None, model: Path | None = None) -> Checkpoint:
    """Returns the checkpoint at `path`.

    `step`: chooses a step of a run, "latest" or a number. `model`: folder of the checkpoint's config.json,
    which is known for runs and for folders that rlrun wrote. Raises ValueError if there is no checkpoint.
    """
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder")
    steps = _steps(path)
    if steps:
        chosen = _choose(path, steps, step)
        return Checkpoint(steps[chosen], "dcp", chosen, model or _model_of_run(steps[chosen]))
    if step not in (None, "latest"):
        raise ValueError(f"{path} has no steps to choose from (--step {step}): it is not a run's folder")
    if is_dcp_folder(path):
        return Checkpoint(path, "dcp", None, model or (path if (path / "config.json").is_file() else None))
    if is_hf_folder(path):
        return Checkpoint(path, "hf", None, path)
    raise ValueError(
        f"{path} is not a checkpoint: it has neither safetensors (model.safetensors or its index), nor the "
        ".metadata of a distributed checkpoint, nor a run's checkpoints"
    )


def _steps(path: Path) -> dict[int, Path]:
    """Returns a run's complete checkpoints by step. `path`: the run, its checkpoints, or a step."""
    if path.name == "trainer" and step_of(path.parent.name) is not None:
        path = path.parent
    folders = [path, *path.glob("step-*"), *path.glob("checkpoints/step-*")]
    megatron = {
        int(folder.name.removeprefix(_MEGATRON_STEP)): folder
        for folder in path.glob(f"{_MEGATRON_STEP}[0-9]*")
        if folder.name.removeprefix(_MEGATRON_STEP).isdecimal() and is_dcp_folder(folder)
    }
    return megatron | {
        step: folder / "trainer"
        for folder in folders
        if (step := step_of(folder.absolute().name)) is not None and is_dcp_folder(folder / "trainer")
    }


def _choose(path: Path, steps: dict[int, Path], step: str | None) -> int:
    if step in (None, "latest"):
        return max(steps)
    if not (step.isascii() and step.isdecimal()) or int(step) not in steps:
        complete = ", ".join(map(str, sorted(steps)))
        raise ValueError(f"{path} has no step {step}; its complete steps are {complete} (or: latest)")
    return int(step)


def _model_of_run(trainer: Path) -> Path | None:
    """Returns the folder of the model that a run started with, from the run's spec.lock.json."""
    try:
        lock = trainer.absolute().parents[2] / "spec.lock.json"
        folder = Path(read_json(lock)["model"]["folder"])
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return folder if (folder / "config.json").is_file() else None
