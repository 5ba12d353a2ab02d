"""`rlrun convert`: converts and inspects Hugging Face folders and distributed checkpoints."""

import json
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rlrun.cli.arguments import AsJson
from rlrun.cli.convert.options import (
    AllowMissing,
    Destination,
    DropUnknown,
    DryRun,
    GroupSize,
    Lora,
    Memory,
    Model,
    Optimizer,
    Origin,
    Precision,
    Push,
    Quantisation,
    Revision,
    ShardSize,
    Source,
    Step,
    Target,
    Threads,
    Tie,
    Verify,
)
from rlrun.runner.host.printed_text import print_text

_DIRECTIONS = {
    "hf-to-dcp": "Write a distributed checkpoint that torchtitan can start from.",
    "dcp-to-hf": "Write a Hugging Face folder from the checkpoint of a run, or any distributed checkpoint.",
    "hf-to-hf": "Re-shard, cast or quantise a folder, tie or untie its embedding, or merge an adapter.",
    "auto": "Detect the format of SRC; DST gets the other one without --to. `auto` may be omitted.",
}


class _AutoGroup(TyperGroup):
    """A group of commands in which `auto` may be omitted."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["auto", *args])


app = typer.Typer(
    help="Convert between Hugging Face folders (hf) and distributed checkpoints (dcp).",
    no_args_is_help=True,
    cls=_AutoGroup,
)


def command(
    context: typer.Context,
    source: Source,
    destination: Destination,
    *,
    origin: Origin = None,
    target: Target = None,
    step: Step = None,
    revision: Revision = None,
    model: Model = None,
    dtype: Precision = None,
    quantise: Quantisation = None,
    group_size: GroupSize = None,
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
    from rlrun.cli.convert import execution
    from rlrun.converters.convert.hub import upload
    from rlrun.converters.families.expected_tensors import Lenience

    checkpoint, commit = execution.find_source(source, revision, step, model, whole=verify and not dry_run)
    to = execution.target_format(context.info_name or "", origin, target, checkpoint)
    if push is not None and to == "dcp":
        raise ValueError("--push only uploads Hugging Face folders: convert to hf")
    lenience = Lenience(missing=allow_missing, unknown=drop_unknown)
    conversion = execution.make_plan(
        checkpoint, to, dtype=dtype, quantise=quantise, group=group_size, shard_size=shard_size, adapter=lora,
        tied=tie, optimizer=optimizer, lenience=lenience,
    )  # fmt: skip
    execution.write(
        conversion, destination, threads=threads, memory=memory, commit=commit, verify=verify, dry_run=dry_run
    )
    if push is not None and not dry_run:
        print_text(f"uploaded as {upload(destination, push, 'Upload by rlrun convert')}")


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
    from rlrun.cli.output import show_waiting
    from rlrun.converters.convert.describe import describe
    from rlrun.converters.convert.differences import compare_checkpoints
    from rlrun.converters.convert.hub import local_folder
    from rlrun.converters.convert.verification import check_source
    from rlrun.converters.folders.locate import find_checkpoint

    checkpoint = find_checkpoint(local_folder(path, revision).folder, step)
    check_source(checkpoint.folder, whole=False)
    if diff is None:
        description = describe(checkpoint)
        if as_json:
            print(json.dumps(description.as_json()))
        else:
            print_description(description)
        return
    with show_waiting(f"comparing with {diff}"):
        other = find_checkpoint(local_folder(diff, None).folder)
        rows = list(compare_checkpoints(checkpoint, other))
    if as_json:
        print(json.dumps([row.as_json() for row in rows]))
    else:
        print_differences(rows)
    raise typer.Exit(1 if any(row.differs for row in rows) else 0)
