"""The draft of a spec whose settings are another trainer's, by the names of a `SettingTable`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rlrun.converters.imports.secrets import without_credentials
from rlrun.converters.imports.setting_table import Row, SettingTable
from rlrun.converters.imports.settings import Setting
from rlrun.converters.imports.spec_draft import SpecDraft, plain_name
from rlrun.specs.problems.suggestions import section_models
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.section import is_derived

_MAX_WHOLE = 1 << 62
_UNKNOWN = object()
"""The default of keys that plugins add, and of those that follow from other keys."""
_REWARDS_FILE = "rewards.py"


@dataclass(kw_only=True)
class ImportDraft(SpecDraft):
    """A spec that is being written from another trainer's settings."""

    table: SettingTable
    settings: dict[str, Setting]
    gpus: int | None = None
    """Number of GPUs that the trainer runs on; None if neither the file nor the user says it."""
    unread: set[str] = field(default_factory=set)
    """Settings whose value cannot be read without running the file."""
    accounted: set[str] = field(default_factory=set)
    """Settings that are in a key's comment or in a note."""
    _written: dict[str, Any] = field(default_factory=dict)
    """The value of each key that was set from settings."""
    _origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The settings that each of these keys came from."""

    def is_given(self, name: str) -> bool:
        """Returns whether the file has the setting."""
        return name in self.settings

    def given(self, *names: str) -> list[Setting]:
        """Returns those of the named settings that the file has."""
        return [self.settings[name] for name in names if name in self.settings]

    def value(self, name: str) -> Any:
        """Returns a setting's value in the file, else the trainer's default."""
        if name in self.settings:
            return self.settings[name].value
        return self.table.default(name)

    def number(self, name: str, default: float = 0.0) -> float:
        """Returns a setting's value as a number. One that is not a finite number gets a note and is replaced
        by the trainer's default, or where that is None by `default`.
        """
        known = self.table.default(name)
        known = known if isinstance(known, int | float) else default
        value = self.value(name)
        try:
            number = math.nan if isinstance(value, bool) else float(value) if value is not None else known
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            self.drop(f"not a number; {known:g} is used", name)
            return float(known)
        return float(number)

    def count(self, name: str, default: int = 1) -> int:
        """Returns a setting's value as a whole number of at least 1; another one is replaced, with a note."""
        known = self.table.default(name)
        known = max(int(known), 1) if isinstance(known, int | float) else max(default, 1)
        value = self.number(name, known)
        if value != int(value) or not 1 <= value <= _MAX_WHOLE:
            self.drop(f"not a whole number of at least 1; {known} is used", name)
            return known
        return int(value)

    def is_on(self, name: str) -> bool:
        """Returns whether a switch is on."""
        value = self.value(name)
        return value.lower() == "true" if isinstance(value, str) else bool(value)

    def put(self, key: str, value: Any, *names: str, comment: str = "") -> None:
        """Sets a key from settings. The comment names those that the file has, else the trainer's default."""
        given = tuple(name for name in names if name in self.settings)
        self.accounted.update(given)
        if self.has(key) and self._written.get(key) != value:
            replaced = (name for name in self._origins.get(key, ()) if name not in names)
            self.drop(f"no effect: {', '.join(given) or names[0]} sets {key}", *replaced)
        self._written[key], self._origins[key] = value, given
        if names and not given:
            default = f"{self.table.trainer}'s default of {names[0]}"
            comment = f"{default}: {comment}" if comment else default
        self.set(key, _safe(value), given, comment)

    def put_given(self, key: str, value: Any, *names: str, comment: str = "") -> None:
        """Sets a key, if the file has any of the settings."""
        if self.given(*names):
            self.put(key, value, *names, comment=comment)

    def drop(self, why: str, *names: str) -> None:
        """Adds a note about those of the named settings that the file has."""
        for setting in self.given(*names):
            self.accounted.add(setting.name)
            self.note(setting, why)

    def drop_unused(self, why: str, *names: str) -> None:
        """Adds a note about those of the named settings that are neither in a key nor in a note yet."""
        self.drop(why, *(name for name in names if name not in self.accounted))


def translate(draft: ImportDraft, rules: Mapping[str, Callable[[ImportDraft], None]]) -> None:
    """Writes the spec: settings with a key first, then the rules in their order. Every setting of the file
    ends in a key's comment or in a note. Raises ValueError for settings that the trainer does not have.
    """
    check_names(draft.table, list(draft.settings.values()))
    for setting in draft.settings.values():
        for earlier in setting.before:
            draft.note(earlier, f"no effect: replaced by the value in {setting.location}")
        if note := draft.table.row(setting.name).note:
            draft.drop(note, setting.name)
    for name, row in draft.table.rows.items():
        if row.key is not None:
            _copy(draft, name, row)
    for rule in rules.values():
        rule(draft)
    why = "no effect: this is what rlrun does, or it depends on a setting that is off"
    draft.drop_unused(why, *draft.settings)


def check_names(table: SettingTable, settings: Sequence[Setting]) -> None:
    """Raises ValueError that names every setting which the trainer does not have."""
    unknown = [setting for setting in settings if not table.is_known(setting.name)]
    if not unknown:
        return
    lines = []
    for setting in unknown:
        meant = table.correct(setting.name)
        cure = f"; did you mean {meant}?" if meant else ""
        lines.append(f"{setting.location}: {setting.name} is not a setting of {table.source}{cure}")
    raise ValueError("\n".join(lines))


def _copy(draft: ImportDraft, name: str, row: Row) -> None:
    """Copies a setting's value to its key; the trainer's default too, where rlrun has another one."""
    assert row.key is not None
    setting = draft.settings.get(name)
    if setting is None and (row.if_given or name in draft.unread or draft.has(row.key)):
        return
    if draft.has(row.key):
        draft.drop(f"no effect: {draft.comments[row.key]} sets {row.key}", name)
        return
    value = draft.value(name)
    if value is None:
        draft.drop("unset: rlrun decides", name)
        return
    if isinstance(value, list | dict):
        draft.drop(f"not a plain value: set {row.key} by hand", name)
        return
    if row.values:
        text = str(value).lower() if isinstance(value, bool) else str(value)
        if text not in row.values:
            draft.drop(f"has no counterpart (available: {', '.join(row.values)})", name)
            return
        value = row.values[text]
    if setting is not None or value != _spec_default(row.key):
        draft.put(row.key, value, name)


def _safe(value: Any) -> Any:
    """Returns a value without credentials in its addresses."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, list | tuple):
        return [_safe(item) for item in value]
    return value


def _spec_default(key: str) -> Any:
    """Returns the default of a dotted key, or `_UNKNOWN`."""
    model: Any = Spec
    *parents, leaf = key.split(".")
    for part in parents:
        field = model.model_fields.get(part)
        model = next(section_models(field.annotation), None) if field else None
        if model is None:
            return _UNKNOWN
    field = model.model_fields.get(leaf)
    if field is None or is_derived(field) or field.is_required():
        return _UNKNOWN
    return field.get_default(call_default_factory=True)


def name_after_file(draft: ImportDraft) -> None:
    """Names the run after the imported file, the first of several."""
    stem = draft.source.partition(" ")[0].rpartition(".")[0]
    draft.set("name", plain_name(stem, "run"), (), "the file's name")


def own_reward(function: str) -> str:
    """Returns the `type` of a reward that the user has to write."""
    return f"{_REWARDS_FILE}:{function}"


def how_to_write(functions: Sequence[str]) -> str:
    """Returns the note about functions of the user's."""
    return (
        f"write {', '.join(functions)} in {_REWARDS_FILE} as rlrun's rewards: `@rlrun.reward`, a function of "
        "one sample that returns a number (docs/plugins.md); then say --allow-local-plugins"
    )
