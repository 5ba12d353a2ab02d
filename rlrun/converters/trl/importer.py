"""Converts a training script of TRL's GRPOTrainer to a spec: `rlrun import trl train.py`.

    file -> TrlSource (settings) -> settings.toml and the rules below -> ImportDraft

TRL counts samples and micro-steps, rlrun prompts and optimizer steps: batch_rules.py converts.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from rlrun.converters.imports.import_draft import ImportDraft, translate
from rlrun.converters.imports.setting_table import SettingTable, read_table
from rlrun.converters.imports.settings import Setting, add_setting, source_text, written_value
from rlrun.converters.imports.spec_draft import refer_to_variables
from rlrun.converters.imports.training_command import TrainingCommand, read_training_command
from rlrun.converters.imports.yaml_table import yaml_table
from rlrun.converters.shell.script import Word
from rlrun.converters.trl import batch_rules as batches
from rlrun.converters.trl import data_rules as data
from rlrun.converters.trl import objective_rules as objective
from rlrun.converters.trl import trainer_rules as trainer
from rlrun.converters.trl.python_script import read_python

RULES: Mapping[str, Callable[[ImportDraft], None]] = {
    "run_name": trainer.run_name,
    "model": trainer.model,
    "batches": batches.batches,
    "steps": batches.steps,
    "devices": batches.devices,
    "lengths": batches.lengths,
    "sampling": batches.sampling,
    "loss": objective.loss,
    "clipping": objective.clipping,
    "entropy": objective.entropy,
    "kl": objective.kl,
    "reference": objective.reference,
    "correction": objective.correction,
    "optimizer": trainer.optimizer,
    "schedule": trainer.schedule,
    "precision": trainer.precision,
    "lora": trainer.lora,
    "data": data.data,
    "rewards": data.rewards,
    "evaluation": data.evaluation,
    "checkpoints": trainer.checkpoints,
    "trackers": trainer.trackers,
}
"""The rules of settings.toml, in the order in which they run."""
_PROCESSES = ("num_processes", "nproc_per_node")
_LAUNCH = {
    *_PROCESSES,
    *("num_machines", "nnodes", "config_file", "accelerate_config", "mixed_precision", "main_process_port"),
    *("machine_rank", "main_process_ip", "num_cpu_threads_per_process", "use_deepspeed", "gpu_ids"),
    *("zero_stage", "deepspeed_config_file", "use_fsdp", "multi_gpu", "rdzv_backend", "rdzv_endpoint"),
}
"""Options of accelerate and torchrun, which `trl grpo` takes too."""
_PARSERS = ("TrlParser", "HfArgumentParser")
"""A script with one of them takes TRL's settings as arguments."""


@cache
def trl_table() -> SettingTable:
    """Returns TRL's settings."""
    return read_table(Path(__file__).parent, "TRL")


def import_file(path: Path, gpus: int | None = None) -> ImportDraft:
    """Returns the spec of a Python, YAML or shell file. Raises ValueError if it has no settings of GRPO."""
    return import_settings(_read_source(path), gpus)


@dataclass(slots=True)
class TrlSource:
    """The settings of a file, and what it says about the processes."""

    name: str
    settings: dict[str, Setting] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unread: set[str] = field(default_factory=set)
    gpus: int | None = None


def _switch_off(source: TrlSource) -> None:
    """Renames flags such as `--no_bf16`, by which a command line switches a setting off."""
    for name in [name for name in source.settings if name.startswith("no_")]:
        plain = name.removeprefix("no_")
        if isinstance(trl_table().default(plain), bool) and not trl_table().is_known(name):
            add_setting(source.settings, plain, False, source.settings.pop(name).location)


def import_settings(source: TrlSource, gpus: int | None = None) -> ImportDraft:
    """Returns the spec of settings. `gpus`: the number of processes, if the file does not say it."""
    _switch_off(source)
    draft = ImportDraft(
        source=source.name,
        command="rlrun import trl",
        table=trl_table(),
        settings=source.settings,
        notes=source.notes,
        unread=source.unread,
        gpus=gpus or source.gpus,
    )
    translate(draft, RULES)
    refer_to_variables(draft)
    return draft


def _read_source(path: Path) -> TrlSource:
    """Reads a file by its suffix. Raises ValueError if it has no settings of GRPO."""
    source = TrlSource(path.name)
    if path.suffix in (".yaml", ".yml"):
        _read_yaml(source, path)
    elif path.suffix == ".sh":
        _read_shell(source, path)
    else:
        read_python(source_text(path), path.name, source.settings, source.notes, source.unread)
    return source


def _read_yaml(source: TrlSource, path: Path) -> None:
    """Adds the settings of a YAML file for `trl grpo --config`."""
    try:
        table = yaml_table(source_text(path))
    except ValueError as error:
        raise ValueError(f"{path} {error}") from None
    if "env" in table:
        source.notes.append(f"{path.name}: env: export these variables before `rlrun launch`")
    for name, value in table.items():
        if name != "env":
            _add(source, str(name), value, path.name)


def _read_shell(source: TrlSource, path: Path) -> None:
    """Adds the settings of the last command that runs `trl grpo` or a Python script."""
    command = read_training_command(path, _training, "runs neither `trl grpo` nor a Python script")
    source.notes += command.notes
    for name, (values, location) in _flags(command.words[: command.program]).items():
        if name != "m":
            _add_launch(source, name, values, location)
    flags = _flags(command.arguments)
    if "config" in flags:
        _read_yaml(source, _configuration(command, *flags.pop("config")[0][:1]))
    program = command.words[command.program]
    is_trl = not program.text.endswith(".py") or _read_program(source, command, program)
    for name, (values, location) in flags.items():
        if is_trl:
            _add(source, name, _value(values), location)
        else:
            source.notes.append(f"{location}: --{name}: an argument of {program.text}, which is not read")


def _read_program(source: TrlSource, command: TrainingCommand, program: Word) -> bool:
    """Adds the settings of a Python script, and returns whether its arguments are TRL's settings."""
    file = command.find_file(program.text)
    if file is None:
        source.notes.append(f"{program.location}: {program.text} was not found, and is not read")
        return True
    text = source_text(file)
    read_python(text, file.name, source.settings, source.notes, source.unread, allow_empty=True)
    return any(parser in text for parser in _PARSERS)


def _training(words: Sequence[Word]) -> int | None:
    """Returns the position of the training program: `grpo` after `trl`, or a Python file."""
    texts = [word.text for word in words]
    for at, text in enumerate(texts):
        if text == "grpo" and at and texts[at - 1].endswith("trl"):
            return at
        if re.fullmatch(r"[^-].*\.py", text) and any(
            "python" in each or "launch" in each or "run" in each for each in texts[:at]
        ):
            return at
    return None


def _flags(words: Sequence[Word]) -> dict[str, tuple[list[str], str]]:
    """Returns the values and the place of each flag."""
    flags: dict[str, tuple[list[str], str]] = {}
    name = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word.text):
            name, equals, value = word.text.lstrip("-").partition("=")
            name = name.replace("-", "_")
            flags[name] = ([value] if equals else [], word.location)
        elif name:
            flags[name][0].append(word.text)
    return flags


def _value(values: Sequence[str]) -> Any:
    """Returns the value of a flag; one without a value is true."""
    if not values:
        return True
    read = [written_value(value) for value in values]
    return read[0] if len(read) == 1 else read


def _add(source: TrlSource, name: str, value: Any, location: str) -> None:
    """Adds a setting; tables of arguments become one setting for each of their keys."""
    if name in _LAUNCH:
        _add_launch(source, name, [str(value)], location)
    elif isinstance(value, dict) and value:
        for inner, item in value.items():
            add_setting(source.settings, f"{name}.{inner}", item, location)
    else:
        add_setting(
            source.settings, name, written_value(value) if isinstance(value, str) else value, location
        )


def _add_launch(source: TrlSource, name: str, values: Sequence[str], location: str) -> None:
    """Reads the number of processes; rlrun starts its processes itself."""
    text = values[0] if values else ""
    if name in _PROCESSES and text.isdecimal() and int(text) > 0:
        source.gpus = int(text)
    else:
        source.notes.append(
            f"{location}: {name}: rlrun starts the processes, see [trainer.parallel] and [cluster]"
        )


def _configuration(command: TrainingCommand, written: str = "") -> Path:
    """Returns the file of --config. Raises ValueError if it does not exist."""
    file = command.find_file(written)
    if file is None:
        raise ValueError(f"{command.path.name}: the file of --config, {written}, was not found")
    return file
