"""Executes `rlrun convert`: finds the source, plans the conversion, writes it and uploads it.

This module imports torch. `command` imports it only to convert, so that `--help` stays fast.
"""

import os
from pathlib import Path
from typing import Any

from rlrun.cli.convert.options import Quantise, parse_bytes
from rlrun.cli.convert.report import print_plan, print_result, progress
from rlrun.cli.output import show_waiting
from rlrun.converters.convert.conversion import Conversion, Options, plan_conversion
from rlrun.converters.convert.copying import ResourceLimits
from rlrun.converters.convert.destination import check_free
from rlrun.converters.convert.hub import local_folder
from rlrun.converters.convert.verification import check_source
from rlrun.converters.families.expected_tensors import Lenience
from rlrun.converters.folders.locate import Checkpoint, find_checkpoint
from rlrun.converters.quantised.kinds import parse_kind
from rlrun.converters.tensors.precision import parse_dtype, torch_threads
from rlrun.models.low_precision import DEFAULT_INT4_GROUP, INT4_GROUPS

_MAX_THREADS = 8
"""Limit of the default number of threads, as the help of --threads says."""


def find_source(
    name: str, revision: str | None, step: str | None, model: Path | None, *, whole: bool
) -> tuple[Checkpoint, str | None]:
    """Returns the checkpoint to convert, and its commit if it is downloaded from the hub.

    Raises ValueError if the checkpoint is damaged; `whole` also checks the bytes of its tensors.
    """
    torch_threads(1)  # the conversion runs threads itself
    local = local_folder(name, revision)
    source = find_checkpoint(local.folder, step, model)
    with show_waiting(f"checking {name}"):
        check_source(source.folder, whole=whole)
    return source, local.commit


def target_format(command: str, origin: str | None, target: str | None, source: Checkpoint) -> Any:
    """Returns DST's format. Raises ValueError if the command or the options contradict SRC's format."""
    if "-to-" in command:
        command_origin, command_target = command.split("-to-")
        if origin not in (None, command_origin) or target not in (None, command_target):
            raise ValueError(f"{command} already determines both formats: omit --from and --to")
        origin, target = command_origin, command_target
    if origin not in (None, source.format):
        raise ValueError(f"{source.folder} is in format {source.format}, not {origin}")
    if (source.format, target) == ("dcp", "dcp"):
        raise ValueError(
            "a distributed checkpoint cannot be converted into another one: convert it to hf, then to dcp"
        )
    return target or ("dcp" if source.format == "hf" else "hf")


def make_plan(
    source: Checkpoint,
    target: Any,
    *,
    dtype: str | None,
    quantise: Quantise | None,
    group: int | None,
    shard_size: str,
    adapter: Path | None,
    tied: bool | None,
    optimizer: bool,
    lenience: Lenience,
) -> Conversion:
    """Returns the plan of a conversion. Raises ValueError for an invalid option."""
    if group is not None and quantise is not Quantise.INT4:
        raise ValueError("--group-size only has an effect with --quantize int4-group: remove it")
    if group not in (None, *INT4_GROUPS):
        raise ValueError(f"--group-size {group}: engines serve groups of {', '.join(map(str, INT4_GROUPS))}")
    options = Options(
        dtype=parse_dtype(dtype) if dtype else None,
        shard_bytes=parse_bytes(shard_size),
        quantise=parse_kind(quantise),
        group=group or DEFAULT_INT4_GROUP,
        dequantise=quantise is Quantise.NONE,
        adapter=adapter,
        tied=tied,
        optimizer=optimizer,
        lenience=lenience,
    )
    with show_waiting("planning the conversion"):
        return plan_conversion(source, target, options)


def write(
    conversion: Conversion,
    destination: Path,
    *,
    threads: int | None,
    memory: str,
    commit: str | None,
    verify: bool,
    dry_run: bool,
) -> None:
    """Prints the plan of a conversion, and carries it out unless `dry_run` is set."""
    limits = ResourceLimits(threads or min(_MAX_THREADS, os.cpu_count() or 1), parse_bytes(memory))
    print_plan(conversion, destination, commit, full=dry_run)
    check_free(destination, conversion.files)
    if dry_run:
        return
    with progress(conversion.nbytes, verify) as (written, compared):
        conversion.write(destination, limits, written.advance, compared.advance if verify else None)
    print_result(conversion, written, destination, verified=verify)
