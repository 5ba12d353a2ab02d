"""Merges one document into another, and records which source set each key.

Tables are merged key by key; any other value is replaced. A plugin's table whose `type` changes is replaced
as a whole, because the parameters of one plugin have no meaning for another. `[engine]` is always merged,
because its types share their keys.
"""

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_origin

from rlrun.specs.problems.codes import Code
from rlrun.specs.problems.findings import Finding, Problem, SpecText, problem_at
from rlrun.specs.problems.positions import KeyPath, Mark
from rlrun.specs.problems.suggestions import section_models
from rlrun.specs.sections.job import Spec

_DEFAULT_TYPES: dict[KeyPath, Any] = {
    (name,): model.model_fields["type"].default
    for name, field in Spec.model_fields.items()
    for model in section_models(field.annotation)
    if "type" in model.model_fields and get_origin(field.annotation) is None
}
"""Default `type` of each table that names a plugin."""
_SHARED_KEYS: set[KeyPath] = {("engine",)}
"""Tables whose types share their keys."""
_INDEX = re.compile(r"[0-9]{1,6}")


class Origin(NamedTuple):
    """The position where a key was set."""

    source: SpecText
    mark: Mark


def merge_document(
    base: dict[str, Any],
    base_origins: dict[KeyPath, Origin],
    over: dict[str, Any],
    over_origins: dict[KeyPath, Origin],
) -> list[Problem]:
    """Merges the document `over` into `base`, and its origins into `base`'s, in place.

    Returns a problem for each key that refers to an element that an array does not have.
    """
    merge = _Merge(base_origins, over_origins)
    merge.merge_table(base, over, (), ())
    return merge.problems


@dataclass(frozen=True, slots=True)
class _Merge:
    """Merges one document into another."""

    base_origins: dict[KeyPath, Origin]
    """Origins of the keys of the result; updated in place."""
    over_origins: dict[KeyPath, Origin]
    """Origins of the keys of the document that is merged in, by their paths in that document."""
    problems: list[Problem] = field(default_factory=list)

    def merge_table(self, base: Any, over: dict[str, Any], base_path: KeyPath, over_path: KeyPath) -> None:
        """Merges the table `over` at `over_path` into the table or array `base` at `base_path`.

        The paths differ where a source writes the string `rewards.0` for the first of several `[[rewards]]`.
        """
        for key, value in over.items():
            if isinstance(base, list) and int(key) >= len(base):
                message = f"{over_path[-1]} has no element {key}: it has {len(base)}, counted from 0"
                self._add_problem((*over_path, key), message)
                continue
            index: Any = int(key) if isinstance(base, list) else key
            old = base[index] if isinstance(base, list) else base.get(index)
            path = (*base_path, index)
            if isinstance(value, dict) and (
                _merges(old, value, _DEFAULT_TYPES.get(path))
                or (path in _SHARED_KEYS and isinstance(old, dict))
            ):
                self.base_origins[path] = self.over_origins[*over_path, key]
                self.merge_table(old, value, path, (*over_path, key))
            else:
                base[index] = value
                self._replace_origins(path, (*over_path, key))

    def _add_problem(self, path: KeyPath, message: str) -> None:
        source, mark = self.over_origins[path]
        finding = Finding(path, message, code=Code.OVERRIDE)
        self.problems.append(problem_at(finding, source, mark.key_start, mark.key_end))

    def _replace_origins(self, base_path: KeyPath, over_path: KeyPath) -> None:
        for path in [path for path in self.base_origins if path[: len(base_path)] == base_path]:
            del self.base_origins[path]
        for path, origin in self.over_origins.items():
            if path[: len(over_path)] == over_path:
                self.base_origins[*base_path, *path[len(over_path) :]] = origin


def _merges(old: Any, new: dict[str, Any], default_type: str | None) -> bool:
    """Returns whether a new table is merged into the old value, rather than replacing it."""
    if isinstance(old, list):
        return bool(new) and all(_INDEX.fullmatch(key) for key in new)
    if not isinstance(old, dict):
        return False
    old_type = old.get("type", default_type)
    return bool(old_type is None or new.get("type", old_type) == old_type)
