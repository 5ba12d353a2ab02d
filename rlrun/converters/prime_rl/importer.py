"""Converts prime-rl's TOML files to a spec: `rlrun import prime-rl rl.toml overlay.toml`.

    files -> PrimeSource (settings) -> settings.toml and the rules below -> ImportDraft

prime-rl counts samples, and generates while it trains.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import tomli

from rlrun.converters.imports.import_draft import ImportDraft, translate
from rlrun.converters.imports.setting_table import SettingTable, read_table
from rlrun.converters.imports.settings import Setting, add_setting, source_text, written_value
from rlrun.converters.imports.spec_draft import refer_to_variables
from rlrun.converters.imports.training_command import read_training_command
from rlrun.converters.prime_rl import source_rules as sources
from rlrun.converters.prime_rl import training_rules as training
from rlrun.converters.shell.script import Word
from rlrun.specs.problems.positions import KeyPath, find_positions, line_and_column

RULES: Mapping[str, Callable[[ImportDraft], None]] = {
    "run_name": training.run_name,
    "model": training.model,
    "steps": training.steps,
    "batches": training.batches,
    "lengths": training.lengths,
    "asynchrony": training.asynchrony,
    "algorithm": training.algorithm,
    "loss": training.loss,
    "optimizer": training.optimizer,
    "schedule": training.schedule,
    "memory": training.memory,
    "precision": training.precision,
    "lora": training.lora,
    "deployment": training.deployment,
    "weights": training.weights,
    "sources": sources.sources,
    "evaluation": sources.evaluation,
    "checkpoints": sources.checkpoints,
    "trackers": sources.trackers,
}
"""The rules of settings.toml, in the order in which they run."""
_PROGRAM = re.compile(r"(?:.*/)?rl")
_FLAG = re.compile(r"--(?P<no>no-)?(?P<name>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?", re.DOTALL)


@cache
def prime_table() -> SettingTable:
    """Returns prime-rl's settings."""
    return read_table(Path(__file__).parent, "prime-rl")


def import_files(paths: Sequence[Path]) -> ImportDraft:
    """Returns the spec of TOML files, or of a shell script. Raises ValueError for unknown settings."""
    return import_settings(_read_source(paths))


@dataclass(slots=True)
class PrimeSource:
    """The settings of one or several files.

    Later files and flags replace earlier settings; an array of tables is replaced as a whole, as in prime-rl.
    """

    name: str
    settings: dict[str, Setting] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def import_settings(source: PrimeSource) -> ImportDraft:
    """Returns the spec of settings."""
    draft = ImportDraft(
        source=source.name,
        command="rlrun import prime-rl",
        table=prime_table(),
        settings=source.settings,
        notes=source.notes,
    )
    translate(draft, RULES)
    refer_to_variables(draft)
    return draft


def _read_source(paths: Sequence[Path]) -> PrimeSource:
    """Reads the files in their order. Raises ValueError if they have no settings of prime-rl."""
    source = PrimeSource(" ".join(path.name for path in paths))
    for path in paths:
        if path.suffix == ".sh":
            _read_shell(source, path)
        else:
            _read_toml(source, path, "")
    return source


def _read_toml(source: PrimeSource, path: Path, prefix: str) -> None:
    """Adds the settings of a file, below the section `prefix`."""
    text = source_text(path).replace("\r\n", "\n")
    try:
        table = tomli.loads(text)
        positions = find_positions(text)
    except tomli.TOMLDecodeError as error:
        raise ValueError(f"{path.name} is not valid TOML: {error}") from None
    except RecursionError:
        raise ValueError(f"{path.name} nests its tables too deeply to be read") from None
    for keys, value in _leaves(table, ()):
        mark = next(
            (positions[keys[:end]] for end in range(len(keys), 0, -1) if keys[:end] in positions), None
        )
        location = f"{path.name}:{line_and_column(text, mark.key_start)[0]}" if mark else path.name
        _add(source, prefix + ".".join(map(str, keys)), value, location)


def _leaves(table: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yields the settings of a table. Before the elements of an array of tables comes the array, as None."""
    for name, value in table.items():
        below = (*path, name)
        if isinstance(value, dict) and value:
            yield from _leaves(value, below)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            yield below, None
            for number, item in enumerate(value):
                yield from _leaves(item, (*below, number)) if item else iter([((*below, number), {})])
        else:
            yield below, value


def _add(source: PrimeSource, name: str, value: Any, location: str) -> None:
    """Adds a setting; None begins an array of tables, which replaces an earlier one."""
    inner = [each for each in source.settings if each.startswith(f"{name}.")]
    if value is None:
        for each in inner:
            replaced = source.settings.pop(each)
            source.notes.append(
                f"{replaced.location}: {replaced}: no effect: replaced by the array in {location}"
            )
        return
    plain = value if isinstance(value, bool | int | float | str | list | dict) else str(value)
    if plain == {} and inner:
        return  # an empty table adds nothing to one with settings
    add_setting(source.settings, name, plain, location)


def _read_shell(source: PrimeSource, path: Path) -> None:
    """Adds the settings of the last command that runs `rl`."""
    command = read_training_command(path, _start, "does not run `rl @ FILE.toml`")
    words = command.arguments
    source.notes += command.notes
    section, flag, values = "", None, []  # type: str, Word | None, list[str]
    for at, word in enumerate([*words, None]):
        before = words[at - 1].text if at else ""
        if word is not None and before == "@":
            file = command.find_file(word.text)
            if file is None:
                source.notes.append(f"{word.location}: {word.text} was not found: its settings are left out")
            else:
                _read_toml(source, file, section)
            flag, section = None, ""
        elif word is not None and word.text == "@":
            section = f"{_name(flag)[0]}." if flag is not None else ""
            flag, values = None, []
        elif word is None or _FLAG.fullmatch(word.text):
            _add_flag(source, flag, values)
            flag, values = word, []
        elif flag is not None:
            values.append(word.text)


def _start(words: Sequence[Word]) -> int | None:
    """Returns the position of the program `rl`, which has a file or a flag after it."""
    for at, word in enumerate(words):
        if _PROGRAM.fullmatch(word.text) and any(each.text[:2] in ("@", "--") for each in words[at + 1 :]):
            return at
    return None


def _name(flag: Word) -> tuple[str, Any]:
    """Returns the setting of a flag, and the value that it has by itself."""
    match = _FLAG.fullmatch(flag.text)
    assert match is not None
    value = match["value"]
    return match["name"].replace("-", "_"), (not match["no"] if value is None else written_value(value))


def _add_flag(source: PrimeSource, flag: Word | None, values: Sequence[str]) -> None:
    if flag is None:
        return
    name, value = _name(flag)
    if values:
        read = [written_value(text) for text in values]
        value = read[0] if len(read) == 1 else read
    if isinstance(value, dict) and value:
        for keys, item in _leaves(value, (name,)):
            _add(source, ".".join(map(str, keys)), item, flag.location)
    else:
        _add(source, name, {} if value is None else value, flag.location)
