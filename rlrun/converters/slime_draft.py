"""The spec that an importer is writing: values, the flag each came from, and notes for the user."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun.specs.job import Spec
from rlrun.specs.reference import as_toml


@dataclass(slots=True)
class Flag:
    """A flag as the script gives it."""

    name: str
    values: list[str]
    place: str
    """`run.sh:12`"""
    earlier: "Flag | None" = None
    """The same flag, given before."""

    @property
    def before(self) -> Iterator["Flag"]:
        """The same flag each time it was given before."""
        flag = self.earlier
        while flag is not None:
            yield flag
            flag = flag.earlier

    def __str__(self) -> str:
        return " ".join([self.name, *self.values])


@dataclass(slots=True)
class Draft:
    """A spec in the making."""

    source: str
    """Name of the script."""
    flags: dict[str, Flag]
    variables: dict[str, str]
    """The script's own."""
    notes: list[str] = field(default_factory=list)
    """Of the whole script."""
    flag_notes: list[tuple[Flag, str]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """The document."""
    comments: dict[str, str] = field(default_factory=dict)
    """By dotted key."""

    @property
    def algorithm(self) -> str:
        """The algorithm that the flags name, in our terms."""
        if self.text("--loss-type") == "sft_loss":
            return "sft"
        return self.text("--advantage-estimator") or "grpo"

    def text(self, name: str) -> str | None:
        """A flag's first value; None where the flag or the value is not given."""
        flag = self.flags.get(name)
        return flag.values[0] if flag and flag.values else None

    def given(self, *names: str) -> list[Flag]:
        """Those of the flags that the script gives."""
        return [self.flags[name] for name in names if name in self.flags]

    def number(self, name: str, default: float) -> float:
        """A flag's value as a number; the default, and a note, where it is none."""
        text = self.text(name)
        if text is None:
            return default
        try:
            return float(text)
        except ValueError:
            self.note(self.flags[name], f"no number; taken as {default:g}")
            return default

    def whole(self, name: str, default: int) -> int:
        """A flag's value as a whole number."""
        return int(self.number(name, default))

    def set(self, key: str, value: Any, flags: Sequence[str], comment: str = "") -> None:
        """Set a dotted key, `*` or a number for an element of an array, with where it came from."""
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
        table[leaf] = value
        self.comments[key.replace(".*", ".0")] = comment or ", ".join(flags)

    def has(self, key: str) -> bool:
        """Whether a dotted key is set."""
        return key.replace(".*", ".0") in self.comments

    def note(self, flag: Flag, text: str) -> None:
        """Tell the user about a flag."""
        self.flag_notes.append((flag, text))

    def messages(self) -> list[str]:
        """Every note as a line; flags of which the same is to be said share one."""
        together: dict[str, list[Flag]] = {}
        for flag, text in self.flag_notes:
            together.setdefault(text, []).append(flag)
        lines = [
            f"{flags[0].place if len(flags) == 1 else self.source}: {', '.join(map(str, flags))}: {text}"
            for text, flags in together.items()
        ]
        return [*lines, *self.notes]

    def toml(self) -> str:
        """The spec as a file: its sections in the usual order, each key with its comment."""
        order = list(Spec.model_fields)
        names = sorted(self.values, key=order.index)
        plain = [name for name in names if not isinstance(self.values[name], (dict, list))]
        lines = [f"# From {self.source}, by `rlrun import slime`."]
        lines += self._lines({name: self.values[name] for name in plain}, "")
        for name in names:
            if name not in plain:
                lines += self._table(name, self.values[name], name)
        return "\n".join(lines) + "\n"

    def _table(self, header: str, value: Any, path: str) -> Iterator[str]:
        if isinstance(value, list):
            for number, element in enumerate(value):
                yield from ["", f"[[{header}]]", *self._lines(element, f"{path}.{number}.")]
            return
        inner = {name: each for name, each in value.items() if _is_table(each)}
        plain = {name: each for name, each in value.items() if name not in inner}
        if plain or not inner:
            yield from ["", f"[{header}]", *self._lines(plain, f"{path}.")]
        for name, each in inner.items():
            yield from self._table(f"{header}.{name}", each, f"{path}.{name}")

    def _lines(self, table: dict[str, Any], prefix: str) -> list[str]:
        table = {name: table[name] for name in sorted(table, key="type".__ne__)}
        pairs = [
            (f"{name} = {as_toml(value)}", self.comments.get(prefix + name)) for name, value in table.items()
        ]
        width = max((len(text) for text, comment in pairs if comment), default=0)
        return [f"{text:{min(width, 60)}}  # {comment}" if comment else text for text, comment in pairs]


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))
