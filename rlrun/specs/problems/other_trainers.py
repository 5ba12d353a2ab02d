"""The counterparts of other trainers' settings, from `other_trainers.toml`."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"`([A-Za-z_][\w.-]*)`")
_KEY = re.compile(r"`\[{0,2}([a-z_][a-z_.]*|--[a-z-]+)\]{0,2}`")
_LINK = re.compile(r" \(\[[^]]*\]\([^)]*\)\)")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of docs/coming-from.md, in Markdown."""

    theirs: str
    ours: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Counterpart:
    """What a setting of another trainer is here."""

    trainer: str
    setting: str
    ours: str
    note: str
    key: str | None
    """The key, if it is exactly one."""

    def cure(self) -> str:
        """Returns the sentence for an unknown key."""
        about = f": {_LINK.sub('', self.note)}" if self.note else ""
        if self.ours == "none":
            return f"{self.trainer}'s `{self.setting}` has no counterpart{about}"
        return f"{self.trainer}'s `{self.setting}` is {_LINK.sub('', self.ours)} here{about}"


@cache
def rows() -> Mapping[str, Sequence[Row]]:
    """Returns the rows of each trainer, in the order of the page."""
    text = files("rlrun.specs.problems").joinpath("other_trainers.toml").read_text("utf-8")
    return {trainer: [Row(**row) for row in table] for trainer, table in tomllib.loads(text).items()}


def counterpart(name: str, shared_parts: int = 1) -> Counterpart | None:
    """Returns the counterpart of the setting that ends like `name`, a dotted path, or None.

    At least `shared_parts` parts of the path have to agree. Of several settings, the one that shares the most
    is taken, then the first on the page.
    """
    best, most = None, shared_parts - 1
    for candidate in _counterparts():
        shared = _shared_parts(candidate.setting.split("."), name.split("."))
        if shared > most:
            best, most = candidate, shared
    return best


def keys_by_name() -> Mapping[str, str]:
    """Returns the key of each setting that has exactly one, by the last part of the setting's name."""
    return {found.setting.rpartition(".")[2]: found.key for found in _counterparts() if found.key}


@cache
def _counterparts() -> Sequence[Counterpart]:
    return [found for trainer, table in rows().items() for row in table for found in _of_row(trainer, row)]


def _of_row(trainer: str, row: Row) -> Iterator[Counterpart]:
    names, keys = _NAME.findall(row.theirs), _KEY.findall(row.ours)
    for position, name in enumerate(names):
        if len(keys) == len(names):
            key = keys[position]
            yield Counterpart(trainer, name, f"`{key}`", row.note, None if key.startswith("-") else key)
        else:
            yield Counterpart(trainer, name, row.ours, row.note, None)


def _shared_parts(setting: Sequence[str], written: Sequence[str]) -> int:
    """Returns how many parts two paths share at their ends: all parts of the shorter one, else none."""
    shorter = min(len(setting), len(written))
    return shorter if list(setting[-shorter:]) == list(written[-shorter:]) else 0
