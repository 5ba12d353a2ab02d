"""Refuses a checkpoint that the job cannot continue from, naming the setting that differs.

Its adapters must be those of the job, and its matrices held or rounded in four or eight bits as the job
does. Other changes of `trainer.precision` are allowed: parameters and optimizer state are float32 in each
of them, and only the products round differently.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rlrun.models.adapters import LoraShape

ADAPTER = ".lora_"
_FACTORS = "parameters."


def check_adapters(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], stored: Mapping[str, Any], *, lora: bool
) -> None:
    """Raises ValueError if a checkpoint has other adapters than a job.

    `shapes` are those of this rank's state: a pipeline stage has only the adapters of its layers, and in some
    layers a model may have none. `lora`: whether the job trains adapters.
    """
    ours, theirs = ({key for key in keys if key.startswith(_FACTORS)} for keys in (shapes, stored))
    ours, theirs = ({key for key in keys if ADAPTER in key} for keys in (ours, theirs))
    if lora != bool(theirs):
        has, cure = ("no adapters", "remove") if lora else ("adapters", "add the run's")
        raise ValueError(f"checkpoint {folder} has {has}: {cure} [trainer.lora], or start another run")
    missing = _matrices(ours - theirs)
    layers = {_layer_of(key) for key in ours}
    further = _matrices({key for key in theirs - ours if _layer_of(key) in layers})
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


def _matrices(keys: Iterable[str]) -> set[str]:
    """Returns the names of the matrices that adapters' tensors of a checkpoint belong to."""
    parts = [key.partition(ADAPTER) for key in keys]
    return {
        matrix.rpartition(".")[2] if factor.endswith(".weight") else f"experts.{factor[2:]}_proj"
        for matrix, _, factor in parts
    }


def _layer_of(key: str) -> str:
    """Returns the `layers.3.` of a key."""
    layer = re.search(r"\blayers\.\d+\.", key)
    return layer[0] if layer else ""


def check_base(folder: Path, stored: str | None, lora: LoraShape) -> None:
    """Raises ValueError if the adapters of a checkpoint were trained beside a base in another precision."""
    if stored != lora.base:
        was, now = (f'"{kind}"' if kind else "not set" for kind in (stored, lora.base))
        raise ValueError(
            f"checkpoint {folder} was saved with trainer.lora.base {was}, found {now}: set the base that the "
            "run began with, or start another run"
        )


def check_rounding(folder: Path, stored: int | None, group: int | None) -> None:
    """Raises ValueError if a checkpoint's matrices are not rounded in the job's groups of numbers.

    None: they are not rounded. Engines, exports and the reference have the rounded matrices, so that another
    group would continue with another policy.
    """
    if stored == group:
        return
    was, now = (
        f'"int4_qat" with int4_group = {number}' if number else 'not "int4_qat"' for number in (stored, group)
    )
    raise ValueError(
        f"checkpoint {folder} was saved with trainer.precision {was}, found {now}: engines would get another "
        "policy than the one that was trained. Set what the run began with, or start another run from an "
        "export of the model"
    )
