"""The settings that a task of reasoning-gym takes, read from its source: importing it takes seconds."""

import ast
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

_REGISTERED = re.compile(r"""register_dataset\(\s*(?:["']([^"']+)["']|(\w+))\s*,\s*\w+\s*,\s*(\w+)""")
_CONSTANT = re.compile(r"""^(\w+)\s*=\s*["']([^"']+)["']""", re.MULTILINE)


def settings_of(task: str) -> set[str] | None:
    """Names of the fields of a task's configuration; None where they cannot be told."""
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
    """Annotated names of a class; None where it inherits some from elsewhere."""
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    if config not in classes or classes[config].bases:
        return None
    body = classes[config].body
    return {
        node.target.id
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
