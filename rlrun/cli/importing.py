"""`rlrun import`: writes specs from the launch scripts of other trainers."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.runner.host.printed_text import print_text

if TYPE_CHECKING:
    from rlrun.converters.imports.spec_draft import SpecDraft
    from rlrun.specs.unwritten import Unwritten

app = typer.Typer(help="Write a spec from another trainer's launch script.", no_args_is_help=True)


Output = Annotated[
    Path | None, typer.Option("-o", "--output", help="The file to write; it must not exist yet.")
]
Gpus = Annotated[
    int | None,
    typer.Option(min=1, help="Number of GPUs that the script trains on, where it does not say it."),
]


@app.callback()
def _named_by_trainer() -> None:
    """Write a spec from another trainer's launch script."""


@app.command()
def slime(
    script: Annotated[
        Path | None, typer.Argument(help="The launch script. It is only read, not executed.")
    ] = None,
    output: Output = None,
    table: Annotated[
        bool,
        typer.Option("--table", help="Only print the tables of docs/slime.md: every flag and its key."),
    ] = False,
) -> None:
    """Turn a slime launch script into a spec; standard error lists the flags that have no counterpart."""
    if table:
        from rlrun.converters.slime.flag_table import table_markdown

        print_text(table_markdown(), end="")
        return
    if script is None:
        raise ValueError("no script is given: rlrun import slime run.sh")
    from rlrun.converters.slime.importer import import_script

    draft = import_script(script)
    _finish(draft, output, "--allow-local-plugins" if draft.unwritten else "")
    if output is not None and draft.unwritten:
        _write_functions(draft.unwritten, draft.source, output.parent / draft.functions_file)


@app.command()
def trl(
    script: Annotated[
        Path,
        typer.Argument(
            help="A Python script with GRPOTrainer, a YAML file for `trl grpo`, or a shell script that "
            "starts one of them. It is only read, not executed."
        ),
    ],
    output: Output = None,
    gpus: Gpus = None,
) -> None:
    """Turn a script of TRL's GRPOTrainer into a spec; standard error lists settings without counterpart."""
    from rlrun.converters.trl.importer import import_file

    _finish(import_file(script, gpus), output)


@app.command()
def verl(
    script: Annotated[
        Path,
        typer.Argument(
            help="A shell script that runs verl.trainer.main_ppo with Hydra's overrides, or a YAML file with "
            "verl's configuration. It is only read, not executed."
        ),
    ],
    output: Output = None,
) -> None:
    """Turn a verl script into a spec; standard error lists the settings that have no counterpart."""
    from rlrun.converters.verl.importer import import_file

    _finish(import_file(script), output)


@app.command("prime-rl")
def prime_rl(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="TOML files of prime-rl (later ones override earlier ones), or a shell script that runs "
            "`rl` with them. They are only read."
        ),
    ],
    output: Output = None,
) -> None:
    """Turn prime-rl's files into a spec; standard error lists the settings that have no counterpart."""
    from rlrun.converters.prime_rl.importer import import_files

    _finish(import_files(files), output)


def _write_functions(unwritten: "Sequence[Unwritten]", source: str, path: Path) -> None:
    """Writes the classes that the user has to write; a file that exists already may have them."""
    from rlrun.plugins.authoring.stubs import stub_module

    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(stub_module(unwritten, source))
    except FileExistsError:
        lacking = _lacking(unwritten, path)
        write = f"; write {', '.join(lacking)} there, or move it away and import again" if lacking else ""
        print_text(f"kept {path}, which exists already{write}")
        return
    names = ", ".join(each.name for each in unwritten)
    print_text(f"wrote {path}: write {names} there; a job starts only when that is done")


def _lacking(unwritten: "Sequence[Unwritten]", path: Path) -> list[str]:
    """Returns the names that no line of the file defines; all, if it cannot be read."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        text = ""
    return [each.name for each in unwritten if not re.search(rf"^class {each.name}\b", text, re.MULTILINE)]


def _finish(draft: "SpecDraft", output: Path | None, options: str = "") -> None:
    """Writes a spec, and prints the notes on standard error. `options`: what its commands need."""
    _write(draft.toml(), output, options)
    print_text(*draft.messages(), sep="\n", file=sys.stderr)


def _write(text: str, output: Path | None, options: str) -> None:
    if output is None:
        print_text(text, end="")
        return
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ValueError(f"{output} already exists; choose another name") from None
    print_text(f"wrote {output}; next: rlrun validate {f'{quote(str(output))} {options}'.rstrip()}")
