"""Finds the settings of a reasoning-gym task in the library's source, since importing it takes seconds."""

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

_REGISTERED = re.compile(r"""register_dataset\(\s*(?:["']([^"']+)["']|(\w+))\s*,\s*\w+\s*,\s*(\w+)""")
_CONSTANT = re.compile(r"""^(\w+)\s*=\s*["']([^"']+)["']""", re.MULTILINE)


def settings_of(task: str) -> set[str] | None:
    """Returns the names of a task's settings, or None if they cannot be read from the source."""
    for text in _sources():
        constants = dict(_CONSTANT.findall(text))
        for literal, name, config in _REGISTERED.findall(text):
            if (literal or constants.get(name)) == task:
                return _fields(text, config)
    return None


def _sources() -> Iterator[str]:
    package = find_spec("reasoning_gym")
    for folder in (package.submodule_search_locations or ()) if package else ():
        for file in Path(folder).rglob("*.py"):
            yield file.read_text(encoding="utf-8")


def _fields(text: str, config: str) -> set[str] | None:
    """Returns the annotated names of a class, or None if it has base classes and may inherit more."""
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    if config not in classes or classes[config].bases:
        return None
    body = classes[config].body
    return {
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
