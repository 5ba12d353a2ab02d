"""Converts a verl launch script or configuration to a spec: `rlrun import verl run.sh`.

    file -> VerlSource (Hydra's overrides, YAML) -> settings.toml and the rules below -> ImportDraft

verl counts prompts, as rlrun does, in its mini-batches too.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rlrun.converters.imports.import_draft import ImportDraft, translate
from rlrun.converters.imports.setting_table import SettingTable, read_table
from rlrun.converters.imports.settings import Setting, add_setting, numbers_read, source_text, written_value
from rlrun.converters.imports.spec_draft import refer_to_variables
from rlrun.converters.imports.training_command import TrainingCommand, read_training_command
from rlrun.converters.imports.yaml_table import yaml_table
from rlrun.converters.shell.script import Word
from rlrun.converters.verl import batch_rules as batches
from rlrun.converters.verl import objective_rules as objective
from rlrun.converters.verl import source_rules as sources

RULES: Mapping[str, Callable[[ImportDraft], None]] = {
    "run_name": batches.run_name,
    "batches": batches.batches,
    "micro_batches": batches.micro_batches,
    "sampling": batches.sampling,
    "steps": batches.steps,
    "algorithm": objective.algorithm,
    "reduction": objective.reduction,
    "clipping": objective.clipping,
    "kl": objective.kl,
    "distillation": objective.distillation,
    "correction": objective.correction,
    "critic": objective.critic,
    "optimizer": objective.optimizer,
    "schedule": objective.schedule,
    "layout": batches.layout,
    "asynchrony": batches.asynchrony,
    "lora": sources.lora,
    "offload": batches.offload,
    "engine": sources.engine,
    "data": sources.data,
    "evaluation": sources.evaluation,
    "rewards": sources.rewards,
    "filters": batches.filters,
    "checkpoints": batches.checkpoints,
    "trackers": sources.trackers,
}
"""The rules of settings.toml, in the order in which they run."""
_PROGRAM = re.compile(r"(?:verl|recipe)[\w.]*\.main_\w+|(?:.*/)?main_(?:ppo|dapo|\w*trainer\w*)\.py")
_OVERRIDE = re.compile(r"(?P<sign>\+{0,2})(?P<name>[A-Za-z_][\w.@/-]*)=(?P<value>.*)", re.DOTALL)
_OPTION = re.compile(r"--config-(?P<kind>name|path|dir)(?:=(?P<value>.*))?")
_BUILT_IN = re.compile(r"ppo_(?:\w+_)?trainer(?:\.yaml)?")
_HYDRA = ("defaults", "hydra")


@cache
def verl_table() -> SettingTable:
    """Returns verl's settings."""
    return read_table(Path(__file__).parent, "verl")


def import_file(path: Path) -> ImportDraft:
    """Returns the spec of a shell script or a YAML file. Raises ValueError if it does not train with verl."""
    return import_settings(_read_source(path))


@dataclass(slots=True)
class VerlSource:
    """The settings of a file."""

    name: str
    settings: dict[str, Setting] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    added: set[str] = field(default_factory=set)
    """Settings that Hydra adds to verl's configuration, written with `+`."""


def import_settings(source: VerlSource) -> ImportDraft:
    """Returns the spec of settings."""
    table = verl_table()
    for name in [name for name in source.added if not table.is_known(name)]:
        setting = source.settings.pop(name)
        source.notes.append(f"{setting.location}: +{setting}: added to verl's settings; has no counterpart")
    draft = ImportDraft(
        source=source.name,
        command="rlrun import verl",
        table=table,
        settings=source.settings,
        notes=source.notes,
    )
    translate(draft, RULES)
    refer_to_variables(draft)
    return draft


def _read_source(path: Path) -> VerlSource:
    """Reads a file by its suffix. Raises ValueError if it does not train with verl."""
    source = VerlSource(path.name)
    if path.suffix in (".yaml", ".yml"):
        _read_yaml(source, path)
    else:
        _read_shell(source, path)
    return source


def _read_yaml(source: VerlSource, path: Path) -> None:
    """Adds the settings of a YAML file with verl's configuration, or a part of it."""
    try:
        table = yaml_table(source_text(path))
    except ValueError as error:
        raise ValueError(f"{path.name} {error}") from None
    for name in _HYDRA:
        if name in table:
            source.notes.append(f"{path.name}: {name}: Hydra's own table is not read")
    plain = {name: value for name, value in table.items() if name not in _HYDRA}
    for name, value in _leaves(plain):
        add_setting(source.settings, name, value, path.name)


def _leaves(table: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the settings of a table by their dotted names."""
    for name, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{name}.")
        elif name != "_target_":
            yield f"{prefix}{name}", numbers_read(value)


def _read_shell(source: VerlSource, path: Path) -> None:
    """Adds the overrides of the last command that trains with verl."""
    command = read_training_command(path, _start, "does not run verl.trainer.main_ppo")
    source.notes += command.notes
    _read_configuration(source, command)
    for word in command.arguments:
        _read_override(source, word)


def _start(words: Sequence[Word]) -> int | None:
    return next((at for at, word in enumerate(words) if _PROGRAM.fullmatch(word.text)), None)


def _read_configuration(source: VerlSource, command: TrainingCommand) -> None:
    """Reads the file of --config-name, unless it is verl's own."""
    options: dict[str, str] = {}
    words = command.arguments
    for at, word in enumerate(words):
        if match := _OPTION.fullmatch(word.text):
            following = words[at + 1].text if at + 1 < len(words) else ""
            options[match["kind"]] = following if match["value"] is None else match["value"]
    name = options.get("name", "")
    if not name or _BUILT_IN.fullmatch(name):
        return
    folder = options.get("path", options.get("dir", "."))
    written = f"{folder}/{name.removesuffix('.yaml')}.yaml"
    file = command.find_file(written)
    if file is None:
        source.notes.append(f"{written} was not found: its settings are left out")
    else:
        _read_yaml(source, file)


def _read_override(source: VerlSource, word: Word) -> None:
    """Adds an override: `a.b=1`, `+a.b=1`, `++a.b=1` or `~a.b`."""
    if word.text.startswith("~"):
        source.notes.append(
            f"{word.location}: {word.text}: removed from verl's configuration; nothing is read"
        )
    elif word.text.startswith("hydra."):
        source.notes.append(f"{word.location}: {word.text}: a setting of Hydra, not of verl")
    elif match := _OVERRIDE.fullmatch(word.text):
        name, value = match["name"], written_value(match["value"])
        if isinstance(value, dict) and value:
            inner = {f"{name}.{key}": item for key, item in _leaves(value)}
        else:
            inner = {name: value}
        for each, item in inner.items():
            add_setting(source.settings, each, item, word.location)
            if match["sign"]:
                source.added.add(each)
    elif word.text not in ("$@", "${@}") and word.text and not _OPTION.match(word.text):
        source.notes.append(f"{word.location}: {word.text} is not read: it is not a setting of verl")
