"""`${env:NAME}`: secrets that a spec refers to and never holds.

A reference stays a reference in the loaded spec, and so in everything written to disk; `reveal` puts in the
value at the moment it is used.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath

_REFERENCE = re.compile(r"\$\{(?P<kind>[A-Za-z_]+):(?P<name>[^}]*)\}")
_UNFOLLOWED = tuple(
    f"{table}."
    for engine in ("engine", "engines")
    for table in (f"{engine}.sglang", f"{engine}.sglang_router", "model.chat_template_args")
)
"""Tables of free keys that are no place for secrets: arguments of a server are on its command line."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def reveal(value: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """`value` with every reference in its strings replaced; tables and arrays are copied.

    Raises ValueError, naming the variable, where it is not set.
    """
    if isinstance(value, str):
        return _REFERENCE.sub(lambda found: _lookup(found["name"], environment), value)
    if isinstance(value, Mapping):
        return {key: reveal(inner, environment) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [reveal(inner, environment) for inner in value]
    return value


def redact_secrets(text: str, referring: Any, environment: Mapping[str, str] = os.environ) -> str:
    """`text` with the reference in place of each secret that `referring`, a spec, refers to.

    Values of fewer than six characters stay: they are in half of all words.
    """
    for _, found in _references(referring):
        value = environment.get(found["name"], "") if found["kind"] == "env" else ""
        if len(value) >= 6:
            text = text.replace(value, found[0])
    return text


def wrong_references(value: Any, own_keys: Collection[str]) -> Iterator[Finding]:
    """References that nobody would follow, whatever the environment.

    `own_keys`: dotted keys of the spec's own sections, array numbers left out, less those that are given
    secrets, as plugins are.
    """
    for path, found in _references(value):
        key = ".".join(part for part in path if isinstance(part, str))
        if found["kind"] == "var":  # one that leads nowhere is told by rlrun.specs.reading.variables
            continue
        if found["kind"] != "env" or not _NAME.fullmatch(found["name"]):
            message = f"{found[0]} is not a reference that rlrun knows"
            cure = "write `${env:NAME}` for a secret, `${var:NAME}` for one of [vars]"
            yield Finding(path, message, cure, "${env:NAME}", found.string)
        elif key in own_keys or key.startswith(_UNFOLLOWED):
            message = (
                f"{found[0]} is not looked up here: only plugins, api_key and environment are given secrets"
            )
            cure = "write the value itself, or a variable: `${var:NAME}`"
            yield Finding(path, message, cure, None, found.string)


def unset_references(value: Any, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """References to variables that are not set here: an error for a launch, not for a validation."""
    for path, found in _references(value):
        if found["kind"] == "env" and found["name"] not in environment:
            yield Finding(
                path, f"the environment variable {found['name']} is not set", "export it, then launch"
            )


def _references(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, re.Match[str]]]:
    if isinstance(value, str):
        yield from ((path, found) for found in _REFERENCE.finditer(value))
    elif isinstance(value, (Mapping, list, tuple)):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _references(inner, (*path, key))


def _lookup(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise ValueError(
            f"the environment variable {name} is not set, and the spec refers to it; export it first"
        )
    return environment[name]
