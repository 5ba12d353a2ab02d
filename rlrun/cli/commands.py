"""Finds the commands of `rlrun` through the entry points of installed distributions.

    [project.entry-points."rlrun.commands"]
    hello = "acme.commands:hello"       # a function, as typer takes it
    cluster = "acme.commands:cluster"   # a typer.Typer, whose commands become `rlrun cluster …`

rlrun announces its own commands the same way. Other distributions are looked at only where the first word is
not one of rlrun's own commands, and they cannot replace one.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import EntryPoint, distribution, entry_points

import typer

from rlrun.runner.host.printed_text import print_text

ENTRY_POINTS = "rlrun.commands"


def commands_for(word: str) -> Sequence[EntryPoint]:
    """Returns the command that a command line begins with, or all commands where it is none of rlrun's own.

    Raises ValueError if two packages announce the same command.
    """
    own = own_commands()
    return [own[word]] if word in own else [*own.values(), *_commands_of_packages(own)]


def own_commands() -> Mapping[str, EntryPoint]:
    """Returns rlrun's commands by name."""
    return {entry.name: entry for entry in distribution("rlrun").entry_points.select(group=ENTRY_POINTS)}


def _commands_of_packages(own: Mapping[str, EntryPoint]) -> Iterator[EntryPoint]:
    """Yields the commands of all packages except rlrun."""
    announced: dict[str, EntryPoint] = {}
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        if entry.name in own:
            continue
        if entry.name in announced:
            both = f"{_package_of(announced[entry.name])} and {_package_of(entry)}"
            raise ValueError(f"the command {entry.name!r} is announced by {both}; uninstall one of them")
        announced[entry.name] = entry
        yield entry


def add_command(app: typer.Typer, entry: EntryPoint) -> None:
    """Adds a command, or a group of commands, to the application.

    A package's command that cannot be imported is reported and left out, so that it breaks no other command.
    """
    try:
        command = entry.load()
    except Exception as error:  # importing a module of another package may raise anything
        if _package_of(entry) == "rlrun":
            raise
        reason = f"{type(error).__name__}: {error}"
        print_text(f"rlrun {entry.name} of {_package_of(entry)} fails to import: {reason}", file=sys.stderr)
        return
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=entry.name)
    else:
        app.command(entry.name)(command)


def _package_of(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else entry.dist.name
