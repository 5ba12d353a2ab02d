"""`rlrun convert`: converts and inspects Hugging Face folders and distributed checkpoints."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rlrun.cli.arguments import AsJson
from rlrun.cli.convert.options import (
    AllowMissing,
    DropUnknown,
    DryRun,
    Lora,
    Memory,
    Model,
    Optimizer,
    Origin,
    Precision,
    Push,
    Quantisation,
    Quantise,
    Revision,
    ShardSize,
    Source,
    Step,
    Target,
    Threads,
    Tie,
    Verify,
    parse_bytes,
)

if TYPE_CHECKING:
    from rlrun.converters.convert.conversion import Conversion
    from rlrun.converters.convert.copying import ResourceLimits

_DIRECTIONS = {
    "hf-to-dcp": "Write a distributed checkpoint that torchtitan can start from.",
    "dcp-to-hf": "Write a Hugging Face folder from the checkpoint of a run, or any distributed checkpoint.",
    "hf-to-hf": "Re-shard, cast or quantise a folder, tie or untie its embedding, or merge an adapter.",
    "auto": "Detect the format of SRC; DST gets the other one without --to. `auto` may be omitted.",
}


class _Guessing(TyperGroup):
    """A group of commands in which `auto` may be omitted."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["auto", *args])


app = typer.Typer(
    help="Convert between Hugging Face folders (hf) and distributed checkpoints (dcp).",
    no_args_is_help=True,
    cls=_Guessing,
)


def command(
    context: typer.Context,
    source: Source,
    destination: Annotated[
        Path, typer.Argument(metavar="DST", help="The folder to write; it must not exist yet.")
    ],
    *,
    origin: Origin = None,
    target: Target = None,
    step: Step = None,
    revision: Revision = None,
    model: Model = None,
    dtype: Precision = None,
    quantise: Quantisation = None,
    lora: Lora = None,
    tie: Tie = None,
    optimizer: Optimizer = False,
    shard_size: ShardSize = "5GB",
    memory: Memory = "4GiB",
    threads: Threads = None,
    allow_missing: AllowMissing = False,
    drop_unknown: DropUnknown = False,
    verify: Verify = False,
    dry_run: DryRun = False,
    push: Push = None,
) -> None:
    """Plans a conversion, writes it, and uploads it if asked to."""
    from rlrun.cli.waiting import show_waiting
    from rlrun.converters.convert.conversion import Options, plan_conversion
    from rlrun.converters.convert.copying import ResourceLimits
    from rlrun.converters.convert.hub import local_folder
    from rlrun.converters.convert.verification import check_source
    from rlrun.converters.families.mapping import Lenience
    from rlrun.converters.folders.locate import find_checkpoint
    from rlrun.converters.quantised.kinds import parse_kind
    from rlrun.converters.tensors.precision import parse_dtype, torch_threads

    torch_threads(1)
    local = local_folder(source, revision)
    found = find_checkpoint(local.folder, step, model)
    with show_waiting(f"checking {source}"):
        check_source(found.folder, whole=verify and not dry_run)
    to = _formats(context.info_name or "", origin, target, found.format, str(local.folder))
    if push is not None and to == "dcp":
        raise ValueError("--push only uploads Hugging Face folders: convert to hf")
    options = Options(
        dtype=parse_dtype(dtype) if dtype else None,
        shard_bytes=parse_bytes(shard_size),
        quantise=parse_kind(quantise),
        dequantise=quantise is Quantise.NONE,
        adapter=lora,
        tied=tie,
        optimizer=optimizer,
        lenience=Lenience(missing=allow_missing, unknown=drop_unknown),
    )
    with show_waiting("planning the conversion"):
        conversion = plan_conversion(found, to, options)
    effort = ResourceLimits(threads or min(8, os.cpu_count() or 1), parse_bytes(memory))
    _carry_out(conversion, destination, effort, commit=local.commit, verify=verify, dry_run=dry_run)
    if push is not None and not dry_run:
        _upload(destination, push)


def _carry_out(
    conversion: "Conversion",
    destination: Path,
    effort: "ResourceLimits",
    *,
    commit: str | None,
    verify: bool,
    dry_run: bool,
) -> None:
    """Prints the plan of a conversion, and carries it out unless `dry_run` is set."""
    from rlrun.cli.convert.report import print_plan, print_result, progress
    from rlrun.converters.convert.destination import check_free

    print_plan(conversion, destination, commit, full=dry_run)
    check_free(destination, conversion.files)
    if dry_run:
        return
    with progress(conversion.nbytes, verify) as (written, compared):
        conversion.write(destination, effort, written.advance, compared.advance if verify else None)
    print_result(conversion, written, destination, verified=verify)


def _upload(folder: Path, name: str) -> None:
    from rlrun.converters.convert.hub import upload

    print(f"uploaded as {upload(folder, name)}")


for _name, _help in _DIRECTIONS.items():
    app.command(_name, help=_help)(command)


@app.command()
def inspect(
    path: Source,
    step: Step = None,
    revision: Revision = None,
    diff: Annotated[
        str | None, typer.Option(metavar="OTHER", help="Compare with another checkpoint, value by value.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the contents of a checkpoint, or compare it with another.

    With --diff, the exit code is 1 if anything differs.
    """
    from rlrun.cli.convert.report import print_description, print_differences
    from rlrun.cli.waiting import show_waiting
    from rlrun.converters.convert.describe import describe
    from rlrun.converters.convert.differences import compare_checkpoints
    from rlrun.converters.convert.hub import local_folder
    from rlrun.converters.convert.verification import check_source
    from rlrun.converters.folders.locate import find_checkpoint

    found = find_checkpoint(local_folder(path, revision).folder, step)
    check_source(found.folder, whole=False)
    if diff is None:
        description = describe(found)
        if as_json:
            print(json.dumps(description.as_json()))
        else:
            print_description(description)
        return
    with show_waiting(f"comparing with {diff}"):
        rows = list(compare_checkpoints(found, find_checkpoint(local_folder(diff, None).folder)))
    if as_json:
        print(json.dumps([row.as_json() for row in rows]))
    else:
        print_differences(rows)
    raise typer.Exit(1 if any(row.differs for row in rows) else 0)


def _formats(name: str, origin: str | None, target: str | None, found: str, folder: str) -> Any:
    """Returns DST's format. Raises ValueError if the command or the options contradict SRC's format."""
    if "-to-" in name:
        wanted_origin, wanted_target = name.split("-to-")
        if origin not in (None, wanted_origin) or target not in (None, wanted_target):
            raise ValueError(f"{name} already determines both formats: omit --from and --to")
        origin, target = wanted_origin, wanted_target
    if origin not in (None, found):
        raise ValueError(f"{folder} is in format {found}, not {origin}")
    if (found, target) == ("dcp", "dcp"):
        raise ValueError(
            "a distributed checkpoint cannot be converted into another one: convert it to hf, then to dcp"
        )
    return target or ("dcp" if found == "hf" else "hf")
