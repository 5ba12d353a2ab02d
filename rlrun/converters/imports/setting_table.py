"""The table of another trainer's settings: their defaults, and what becomes of them in a spec.

Each importer has two files. `defaults.toml` is generated from the trainer itself:

    source = "trl 1.16.0"               # the version that the defaults are of
    unset = ["max_grad_norm"]           # settings whose default is None
    open = ["generation_kwargs"]        # tables with keys of the user's own
    [defaults]
    learning_rate = 1e-6
    "source.*.ratio" = 1.0              # `*` stands for the number of an element

`settings.toml` is written by hand. Each setting is in one of its three parts:

    [keys]                              # the value is copied
    learning_rate = "trainer.lr"
    fp32_head = { key = "trainer.head_dtype", values = { true = "float32" } }
    [rules]                             # a function of the importer translates several settings together
    kl = ["beta", "use_bias_correction_kl"]
    [[notes]]                           # no counterpart: the note says why, or what to do instead
    note = "micro-batches are packed by tokens"
    names = ["pad_to_*"]                # `*` stands for any characters
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli

from rlrun.specs.problems.spelling import nearest

_UNLISTED = "has no counterpart in rlrun"


@dataclass(frozen=True, slots=True)
class Row:
    """What becomes of a setting: it has a key, a rule, or a note."""

    key: str | None = None
    """The key of the spec that gets the value."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Maps the trainer's values, as text, to those of the key; empty: the value is the same."""
    if_given: bool = False
    """Whether the trainer's default is not written."""
    rule: str | None = None
    """Name of the importer's function."""
    note: str = ""


@dataclass(frozen=True)
class SettingTable:
    """All settings of a trainer."""

    trainer: str
    """The trainer's name in messages: `TRL`."""
    source: str
    """The version that the defaults are of."""
    defaults: Mapping[str, Any]
    """The default of each setting; None where the trainer has none."""
    open: frozenset[str]
    """Settings that are tables with keys of the user's own."""
    rows: Mapping[str, Row]

    def row(self, name: str) -> Row:
        """Returns the row of a setting: its own, or the longest pattern's that matches."""
        name = _general(name)
        if name in self.rows:
            return self.rows[name]
        patterns = [pattern for pattern in self._patterns if fnmatchcase(name, pattern)]
        return self.rows[max(patterns, key=len)] if patterns else Row(note=_UNLISTED)

    def is_known(self, name: str) -> bool:
        """Returns whether the trainer has a setting of this name, in this or an older version."""
        general = _general(name)
        if general in self.defaults or (name in self.rows and "*" not in name):
            return True
        parents = [general[:at] for at, character in enumerate(general) if character == "."]
        return any(parent in self.open for parent in parents)

    def default(self, name: str) -> Any:
        """Returns a setting's default; None if the trainer has none."""
        return self.defaults.get(_general(name))

    def correct(self, name: str) -> str | None:
        """Returns the known setting that is spelt most like an unknown one; None if none is near."""
        return nearest(_general(name), self.names(), 0.85)

    def names(self) -> Iterator[str]:
        """Yields the names of all settings."""
        yield from self.defaults
        yield from (name for name in self.rows if name not in self.defaults and "*" not in name)

    @cached_property
    def _patterns(self) -> list[str]:
        return [name for name in self.rows if "*" in name]


def _general(name: str) -> str:
    """Returns a name with `*` for the number of an element: `source.0.name` is `source.*.name`."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def read_table(folder: Path, trainer: str) -> SettingTable:
    """Reads the two files of an importer."""
    generated = tomli.loads((folder / "defaults.toml").read_text("utf-8"))
    defaults = generated["defaults"] | dict.fromkeys(generated["unset"])
    written = tomli.loads((folder / "settings.toml").read_text("utf-8"))
    rows = {}
    for name, row in written["keys"].items():
        rows[name] = Row(key=row) if isinstance(row, str) else Row(**row)
    for rule, names in written["rules"].items():
        rows |= dict.fromkeys(names, Row(rule=rule))
    for group in written["notes"]:
        rows |= dict.fromkeys(group["names"], Row(note=group["note"]))
    return SettingTable(trainer, generated["source"], defaults, frozenset(generated.get("open", ())), rows)
