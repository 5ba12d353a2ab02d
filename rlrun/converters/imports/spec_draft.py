"""Holds the spec that an importer is writing: values, the settings they came from, and notes for the user.

In the end it is written as TOML, with a comment on each key.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rlrun.converters.imports.secrets import is_secret
from rlrun.specs.derived.sglang_arguments import SERVER, flag_name
from rlrun.specs.reading.reference import as_toml
from rlrun.specs.sections.job import Spec

_MAX_COLUMN = 60
"""The column at which comments begin, at most."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_UNRESOLVED = re.compile(r"\$\(|`|\$\{(?!var:|env:)")


class Origin(Protocol):
    """A setting in the imported file; its text is shown in notes, without secrets."""

    name: str
    location: str
    """File and line, such as `run.sh:12`."""


@dataclass(kw_only=True)
class SpecDraft:
    """A spec that is being written."""

    source: str
    """Name of the imported file."""
    command: str
    """The command that writes the spec, such as `rlrun import slime`."""
    notes: list[str] = field(default_factory=list)
    """Notes about the whole file."""
    setting_notes: list[tuple[Origin, str]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """The spec as nested tables."""
    comments: dict[str, str] = field(default_factory=dict)
    """The comment of each dotted key."""

    def is_given(self, name: str) -> bool:
        """Returns whether the imported file has a setting of this name."""
        raise NotImplementedError

    def set(self, key: str, value: Any, names: Sequence[str], comment: str = "") -> None:
        """Sets a dotted key, with a comment that names the settings it came from.

        In the key, `*` or a number stands for an element of an array.
        """
        *parents, leaf = key.replace(".*", ".0").split(".")
        table: Any = self.values
        for number, part in enumerate(parents):
            below: Any = [] if [*parents, leaf][number + 1].isdecimal() else {}
            if part.isdecimal():
                while len(table) <= int(part):
                    table.append({})
                table = table[int(part)]
            else:
                table = table.setdefault(part, below)
        before = table.get(leaf)
        table[leaf] = value
        self._comment(key.replace(".*", ".0"), value == before, names, comment)

    def _comment(self, key: str, same: bool, names: Sequence[str], comment: str) -> None:
        """Adds the settings that a key came from to its comment; a comment on another value is replaced."""
        given = ", ".join(name for name in names if self.is_given(name.split()[0]))
        text = f"{given}: {comment}" if given and comment else given or comment or ", ".join(names)
        text = "".join(character if character.isprintable() else " " for character in text)
        earlier = self.comments.get(key) if same else None
        self.comments[key] = f"{earlier}, {text}" if earlier and earlier != text else text

    def has(self, key: str) -> bool:
        """Returns whether a dotted key is set."""
        return key.replace(".*", ".0") in self.comments

    def join_cluster(self) -> None:
        """Makes a job on several nodes join the Ray cluster of its host."""
        self.set("cluster.address", "auto", (), "the Ray cluster that this host has joined")
        note = 'cluster.address: "auto" joins the Ray cluster of this host; start Ray on every node first'
        if note not in self.notes:
            self.notes.append(note)

    def note(self, setting: Origin, text: str) -> None:
        """Adds a note about a setting, unless it was already added."""
        if (setting, text) not in self.setting_notes:
            self.setting_notes.append((setting, text))

    def messages(self) -> list[str]:
        """Returns all notes as lines; settings with the same note share a line."""
        settings_by_note: dict[str, list[Origin]] = {}
        for setting, text in self.setting_notes:
            settings_by_note.setdefault(text, []).append(setting)
        lines = [
            f"{settings[0].location if len(settings) == 1 else self.source}: "
            f"{', '.join(map(str, settings))}: {text}"
            for text, settings in settings_by_note.items()
        ]
        return [*lines, *self.notes]

    def toml(self) -> str:
        """Returns the spec as TOML: the sections in the reference's order, each key with its comment."""
        return spec_toml(self.values, self.comments, f"Imported from {self.source} by `{self.command}`.")


def spec_toml(values: Mapping[str, Any], comments: Mapping[str, str], title: str) -> str:
    """Returns a spec as TOML: the title as a comment, then the sections in the reference's order.

    `comments`: by dotted key, with numbers for the elements of arrays, as in `rewards.0.type`.
    """
    order = list(Spec.model_fields)
    names = sorted(values, key=order.index)
    plain = [name for name in names if not isinstance(values[name], (dict, list))]
    lines = [f"# {title}", *_lines({name: values[name] for name in plain}, "", comments)]
    for name in names:
        if name not in plain:
            lines += _table(name, values[name], name, comments)
    return "\n".join(lines) + "\n"


def _table(header: str, value: Any, path: str, comments: Mapping[str, str]) -> Iterator[str]:
    """Yields the lines of a table, or of an array of tables, and of the tables inside."""
    if isinstance(value, list):
        for number, element in enumerate(value):
            yield from ["", f"[[{header}]]", *_lines(element, f"{path}.{number}.", comments)]
        return
    inner = {name: item for name, item in value.items() if _is_table(item)}
    plain = {name: item for name, item in value.items() if name not in inner}
    if plain or not inner:
        yield from ["", f"[{header}]", *_lines(plain, f"{path}.", comments)]
    for name, item in inner.items():
        yield from _table(f"{header}.{name}", item, f"{path}.{name}", comments)


def _lines(table: Mapping[str, Any], prefix: str, comments: Mapping[str, str]) -> list[str]:
    """Returns a line for each key, `type` first, with the comments in one column."""
    table = {name: table[name] for name in sorted(table, key="type".__ne__)}
    pairs = [(f"{name} = {as_toml(value)}", comments.get(prefix + name)) for name, value in table.items()]
    width = max((len(text) for text, comment in pairs if comment), default=0)
    return [f"{text:{min(width, _MAX_COLUMN)}}  # {comment}" if comment else text for text, comment in pairs]


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def plain_name(text: str, default: str = "") -> str:
    """Returns a text as a name; `default` if nothing is left of it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or default


def refer_to_variables(draft: SpecDraft) -> None:
    """Makes values from the script's environment refer to variables of the spec, and notes which ones."""
    unset: set[str] = set()
    draft.values = _with_variables(draft.values, unset)
    draft.notes += [
        f"{name} is not set in the script: add `{name} = …` under [vars], or pass --set vars.{name}=…"
        for name in sorted(unset)
    ]
    for key, text in _texts(draft.values, ""):
        if _UNRESOLVED.search(text):
            draft.notes.append(f"{key}: {text} depends on how the script is run: fill it in")


def _with_variables(value: Any, unset: set[str]) -> Any:
    """Returns the document with `${NAME}` replaced by `${var:NAME}`, and adds the names to `unset`."""
    if isinstance(value, dict):
        return {key: _with_variables(inner, unset) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_variables(inner, unset) for inner in value]
    if not isinstance(value, str):
        return value
    unset.update(_VARIABLE.findall(value))
    return _VARIABLE.sub(r"${var:\1}", value)


def _texts(value: Any, key: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, (dict, list)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, inner in items:
            yield from _texts(inner, f"{key}.{name}".lstrip("."))


def why_reserved(name: str) -> str | None:
    """Returns why a spec cannot set an argument of the server; None if it can."""
    argument = flag_name(name)
    if argument not in SERVER.own and not is_secret(argument):
        return None
    decides = SERVER.own.get(argument)
    return "set by rlrun" + (f": {decides}" if decides else "")
