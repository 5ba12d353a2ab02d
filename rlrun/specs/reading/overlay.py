"""Lays one document on another, and keeps track of which source set what.

Tables merge key by key; anything else is replaced. A plugin's table whose `type` changes is replaced as a
whole: the parameters of one plugin mean nothing to another. Kinds of engine share keys, so `[engine]` merges.
"""

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple, get_origin

from rlrun.specs.problems.findings import Finding, Problem, Source, problem_at
from rlrun.specs.problems.positions import KeyPath, Mark
from rlrun.specs.problems.suggestions import section_models
from rlrun.specs.sections.job import Spec

_DEFAULT_TYPES: dict[KeyPath, Any] = {
    (name,): model.model_fields["type"].default
    for name, field in Spec.model_fields.items()
    for model in section_models(field.annotation)
    if "type" in model.model_fields and get_origin(field.annotation) is None
}
_SHARED_KEYS: set[KeyPath] = {("engine",)}


_INDEX = re.compile(r"[0-9]{1,6}")


class Origin(NamedTuple):
    """Where a key path was set."""

    source: Source
    mark: Mark


def merge_document(
    base: dict[str, Any],
    base_origins: dict[KeyPath, Origin],
    over: dict[str, Any],
    over_origins: dict[KeyPath, Origin],
) -> list[Problem]:
    """Merge the document `over` into `base`, and its origins into `base`'s, in place.

    Gives back what could not be merged: elements that an array does not have.
    """
    overlay = _Overlay(base_origins, over_origins)
    overlay.lay(base, over, (), ())
    return overlay.problems


@dataclass(frozen=True, slots=True)
class _Overlay:
    """One merge under way."""

    kept: dict[KeyPath, Origin]
    """Of the result."""
    origins: dict[KeyPath, Origin]
    """Of the document on top, by path as it wrote them."""
    problems: list[Problem] = field(default_factory=list)

    def lay(self, base: Any, over: dict[str, Any], here: KeyPath, there: KeyPath) -> None:
        """Merge table `over`, written at `there`, into the table or array `base` at `here`.

        The two differ where a source writes `rewards.0` for the first of several `[[rewards]]`.
        """
        for key, value in over.items():
            if isinstance(base, list) and int(key) >= len(base):
                self._refuse(
                    (*there, key), f"{there[-1]} has no element {key}: it has {len(base)}, counted from 0"
                )
                continue
            place: Any = int(key) if isinstance(base, list) else key
            old = base[place] if isinstance(base, list) else base.get(place)
            path = (*here, place)
            if isinstance(value, dict) and (
                _merges(old, value, _DEFAULT_TYPES.get(path))
                or (path in _SHARED_KEYS and isinstance(old, dict))
            ):
                self.kept[path] = self.origins[*there, key]
                self.lay(old, value, path, (*there, key))
            else:
                base[place] = value
                self._replace_origins(path, (*there, key))

    def _refuse(self, path: KeyPath, message: str) -> None:
        source, mark = self.origins[path]
        self.problems.append(problem_at(Finding(path, message), source, mark.key_start, mark.key_end))

    def _replace_origins(self, here: KeyPath, there: KeyPath) -> None:
        for path in [path for path in self.kept if path[: len(here)] == here]:
            del self.kept[path]
        for path, origin in self.origins.items():
            if path[: len(there)] == there:
                self.kept[*here, *path[len(there) :]] = origin


def _merges(old: Any, new: dict[str, Any], default_type: str | None) -> bool:
    """Whether a new table is laid on the old value, rather than taking its place."""
    if isinstance(old, list):
        return bool(new) and all(_INDEX.fullmatch(key) for key in new)
    if not isinstance(old, dict):
        return False
    old_type = old.get("type", default_type)
    return bool(old_type is None or new.get("type", old_type) == old_type)
