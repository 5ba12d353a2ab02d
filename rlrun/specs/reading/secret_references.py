"""`${env:NAME}`: references from a spec to secrets in environment variables.

The loaded spec contains the reference, and so does everything that is written to disk. `reveal` replaces it
by the value when the value is used.
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
"""Tables whose references are not followed, because arguments of a server are visible on its command line."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def reveal(value: Any, environment: Mapping[str, str] = os.environ) -> Any:
    """Returns a copy of `value` with every reference in its strings replaced by the secret.

    Raises ValueError with the name of the variable where a variable is not set.
    """
    if isinstance(value, str):
        return _REFERENCE.sub(lambda match: _lookup(match["name"], environment), value)
    if isinstance(value, Mapping):
        return {key: reveal(inner, environment) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [reveal(inner, environment) for inner in value]
    return value


def redact_secrets(text: str, referring: Any, environment: Mapping[str, str] = os.environ) -> str:
    """Returns `text` with each secret that the spec `referring` refers to replaced by its reference.

    Values of fewer than six characters are not replaced, because they occur in ordinary words.
    """
    for _, reference in _references(referring):
        value = environment.get(reference["name"], "") if reference["kind"] == "env" else ""
        if len(value) >= 6:
            text = text.replace(value, reference[0])
    return text


def wrong_references(value: Any, own_keys: Collection[str]) -> Iterator[Finding]:
    """Yields references that are not valid, or at keys whose references are never followed.

    `own_keys`: dotted keys of the spec's own sections, without array indices and without the keys for
    secrets.
    """
    for path, reference in _references(value):
        key = ".".join(part for part in path if isinstance(part, str))
        if reference["kind"] == "var":  # rlrun.specs.reading.variables reports undefined variables
            continue
        if reference["kind"] != "env" or not _NAME.fullmatch(reference["name"]):
            message = f"{reference[0]} is not a valid reference"
            cure = "write `${env:NAME}` for a secret, `${var:NAME}` for a variable of [vars]"
            yield Finding(path, message, cure, "${env:NAME}", reference.string)
        elif key in own_keys or key.startswith(_UNFOLLOWED):
            message = (
                f"{reference[0]} is not looked up here: secrets are only for plugins, api_key and environment"
            )
            cure = "write the value itself, or a variable: `${var:NAME}`"
            yield Finding(path, message, cure, None, reference.string)


def unset_references(value: Any, environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """Yields references to variables that are not set: an error for a launch, not for `rlrun validate`."""
    for path, reference in _references(value):
        if reference["kind"] == "env" and reference["name"] not in environment:
            yield Finding(
                path, f"the environment variable {reference['name']} is not set", "export it, then launch"
            )


def _references(value: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, re.Match[str]]]:
    if isinstance(value, str):
        yield from ((path, match) for match in _REFERENCE.finditer(value))
    elif isinstance(value, (Mapping, list, tuple)):
        for key, inner in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from _references(inner, (*path, key))


def _lookup(name: str, environment: Mapping[str, str]) -> str:
    if name not in environment:
        raise ValueError(
            f"the environment variable {name} is not set, and the spec refers to it; export it first"
        )
    return environment[name]
