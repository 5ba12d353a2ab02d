"""Holds the spec that the importer is writing: values, the flags they came from, and notes for the user.

In the end it is written as TOML, with a comment on each key.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rlrun.converters.slime.secrets import is_secret, without_credentials
from rlrun.models.families.table import TABLES
from rlrun.models.family import Support
from rlrun.models.json_files import parse_json
from rlrun.specs.derived.sglang_arguments import SERVER, flag_name
from rlrun.specs.reading.reference import as_toml
from rlrun.specs.sections.job import Spec

_ROLLOUT_SECTIONS = {"rollout", "rewards", "scoring", "filters", "engine", "engines", "eval", "debug"}
_ROLLOUT_SECTIONS |= {"fault_tolerance", "reference", "teacher", "critic", "algorithm"}
_POLICY_LOSS_KEYS = {"cluster.placement", "trainer.optimizer_steps", "trainer.old_log_probs", "deterministic"}
_POLICY_LOSS_KEYS |= {"trainer.moe.routing_replay"}
_DEMONSTRATION_KEYS = ("rollout.max_prompt_tokens", "rollout.max_response_tokens", "algorithm.type")
_MAX_COLUMN = 60
"""The column at which comments begin, at most."""
_MAX_WHOLE = 1 << 62
_FAMILY_OF_SPEC = {"slime_plugins.models.glm4": "glm4"}
"""The model_type of models that slime describes by a module of --spec, for scripts without a config.json."""
_PURE_DISTILLATION = "on_policy_distillation.reward_func"


@dataclass(slots=True)
class Flag:
    """A flag in the script's training command."""

    name: str
    values: list[str]
    location: str
    """File and line, such as `run.sh:12`."""
    earlier: "Flag | None" = None
    """The previous occurrence of the same flag."""

    @property
    def before(self) -> Iterator["Flag"]:
        """Yields the earlier occurrences of the same flag, the latest first."""
        flag = self.earlier
        while flag is not None:
            yield flag
            flag = flag.earlier

    def __str__(self) -> str:
        values = ["…"] if self.values and is_secret(self.name) else map(without_credentials, self.values)
        return " ".join([self.name, *values])


@dataclass
class Draft:
    """A spec that is being written."""

    source: str
    """Name of the script."""
    flags: dict[str, Flag]
    is_async: bool = False
    """Whether the script runs train_async.py."""
    notes: list[str] = field(default_factory=list)
    """Notes about the whole script."""
    read_file: Callable[[str], str | None] = lambda path: None
    """Returns the text of a file that a flag names; None if it is not found."""
    int4_group: int | None = None
    """How many numbers share a scale in INT4 training; None if the script does not say it."""
    flag_notes: list[tuple[Flag, str]] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    """The spec as nested tables."""
    comments: dict[str, str] = field(default_factory=dict)
    """The comment of each dotted key."""

    @property
    def algorithm(self) -> str:
        """Returns the `algorithm.type` that the flags select."""
        if self.text("--loss-type") == "sft_loss":
            return "sft"
        if self.is_pure_distillation:
            return "on_policy_distillation"
        return self.text("--advantage-estimator") or "grpo"

    @property
    def is_pure_distillation(self) -> bool:
        """Returns whether the reward is slime's function for distillation, which is 0 for every sample."""
        custom = self.text("--custom-rm-path") or ""
        is_sft = self.text("--loss-type") == "sft_loss"
        return not is_sft and "--use-opd" in self.flags and custom.endswith(_PURE_DISTILLATION)

    @property
    def updates(self) -> int:
        """Returns the number of optimizer steps per rollout step."""
        samples = self.whole("--rollout-batch-size", 0) * self.whole("--n-samples-per-prompt", 1)
        given = self.whole("--num-steps-per-rollout", 0)
        size = self.whole("--global-batch-size", samples)
        return max(1, given or (samples // size if size > 0 else 1))

    @cached_property
    def model_config(self) -> dict[str, Any]:
        """Returns the config.json of --hf-checkpoint; empty if it cannot be read here."""
        text = self.read_file(f"{(self.text('--hf-checkpoint') or '').rstrip('/')}/config.json")
        try:
            config = parse_json(text or "{}")
        except ValueError:
            return {}
        return config if isinstance(config, dict) else {}

    @property
    def only_transformers(self) -> Support | None:
        """Returns the model's family, if only the layers of transformers compute it; None otherwise."""
        named = next((kind for spec, kind in _FAMILY_OF_SPEC.items() if spec in self.values_of("--spec")), "")
        kind = str(self.model_config.get("model_type", named))
        return None if kind in TABLES["torchtitan"] else TABLES["transformers"].get(kind)

    def text(self, name: str) -> str | None:
        """Returns a flag's first value; None if the script gives no such flag or value."""
        flag = self.flags.get(name)
        return flag.values[0] if flag and flag.values else None

    def values_of(self, name: str) -> list[str]:
        """Returns all values of a flag; none if the script does not give it."""
        return self.flags[name].values if name in self.flags else []

    def given(self, *names: str) -> list[Flag]:
        """Returns the named flags that occur in the script."""
        return [self.flags[name] for name in names if name in self.flags]

    def number(self, name: str, default: float) -> float:
        """Returns a flag's value as a number; if it is not finite, adds a note and returns the default."""
        text = self.text(name)
        if text is None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            self.note(self.flags[name], f"not a number; {default:g} is used")
            return default
        return value

    def whole(self, name: str, default: int) -> int:
        """Returns a flag's value as a whole number; if it is not, adds a note and returns the default."""
        value = self.number(name, default)
        if value != int(value) or abs(value) > _MAX_WHOLE:
            self.note(self.flags[name], f"not a whole number; {default} is used")
            return default
        return int(value)

    def count(self, name: str, default: int) -> int:
        """Returns a flag's value as a whole number of at least 1; a smaller one is replaced, with a note."""
        value = self.whole(name, default)
        if value < 1:
            self.note(self.flags[name], f"less than 1; {max(default, 1)} is used")
        return value if value >= 1 else max(default, 1)

    def set(self, key: str, value: Any, flags: Sequence[str], comment: str = "") -> None:
        """Sets a dotted key, with a comment that names the flags it came from.

        In the key, `*` or a number stands for an element of an array. Keys about rollouts have no effect on
        demonstrations: they become notes instead.
        """
        if self.algorithm == "sft" and _is_unused_by_sft(key):
            for flag in self.given(*flags):
                self.note(flag, "no effect: training on demonstrations has no sampling and no policy loss")
            return
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
        self._comment(key.replace(".*", ".0"), value == before, flags, comment)

    def server_argument(self, table: str, name: str, value: Any, flag: str) -> None:
        """Sets an argument of the SGLang server, unless rlrun sets it itself."""
        argument = flag_name(name)
        if argument in SERVER.own or is_secret(argument):
            decides = SERVER.own.get(argument)
            self.note(self.flags[flag], f"{name}: set by rlrun" + (f": {decides}" if decides else ""))
        else:
            self.set(f"{table}.{name.replace('-', '_')}", value, (flag,))

    def _comment(self, key: str, same: bool, flags: Sequence[str], comment: str) -> None:
        """Adds the flags that a key came from to its comment; a comment on another value is replaced."""
        names = ", ".join(name for name in flags if name.split()[0] in self.flags)
        text = f"{names}: {comment}" if names and comment else names or comment or ", ".join(flags)
        text = "".join(character if character.isprintable() else " " for character in text)
        earlier = self.comments.get(key) if same else None
        self.comments[key] = f"{earlier}, {text}" if earlier and earlier != text else text

    def has(self, key: str) -> bool:
        """Returns whether a dotted key is set."""
        return key.replace(".*", ".0") in self.comments

    def note(self, flag: Flag, text: str) -> None:
        """Adds a note about a flag, unless it was already added."""
        if (flag, text) not in self.flag_notes:
            self.flag_notes.append((flag, text))

    def messages(self) -> list[str]:
        """Returns all notes as lines; flags with the same note share a line."""
        flags_by_note: dict[str, list[Flag]] = {}
        for flag, text in self.flag_notes:
            flags_by_note.setdefault(text, []).append(flag)
        lines = [
            f"{flags[0].location if len(flags) == 1 else self.source}: {', '.join(map(str, flags))}: {text}"
            for text, flags in flags_by_note.items()
        ]
        return [*lines, *self.notes]

    def toml(self) -> str:
        """Returns the spec as TOML: the sections in the reference's order, each key with its comment."""
        return spec_toml(self.values, self.comments, f"Imported from {self.source} by `rlrun import slime`.")


def _is_unused_by_sft(key: str) -> bool:
    """Returns whether a key is about rollouts or a policy loss."""
    section = key.partition(".")[0]
    return key not in _DEMONSTRATION_KEYS and (section in _ROLLOUT_SECTIONS or key in _POLICY_LOSS_KEYS)


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
