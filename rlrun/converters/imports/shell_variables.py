"""Makes values that depend on a script's environment refer to variables of the spec."""

import re
from collections.abc import Iterator
from typing import Any

from rlrun.converters.imports.spec_draft import SpecDraft

_VARIABLE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_UNRESOLVED = re.compile(r"\$\(|`|\$\{(?!var:|env:)")


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
