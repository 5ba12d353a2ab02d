"""Finds reasoning-gym's tasks and settings in the library's source, since importing it takes seconds."""

import ast
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

_REGISTERED = re.compile(r"""register_dataset\(\s*(?:["']([^"']+)["']|(\w+))\s*,\s*\w+\s*,\s*(\w+)""")
_TYPES: dict[str, Any] = {
    "int": int | float,
    "float": float,
    "bool": bool,
    "str": str,
    "Optional[int]": int | float | None,
    "Optional[str]": str | None,
    "list[str]": list[str] | tuple[str, ...],
    "list[float]": list[float],
}
"""The annotations of nearly all settings; values of others are checked only when the task is made.

The defaults of a few settings differ from their annotations: a fraction for `int`, a tuple for a list.
"""
_CONSTANT = re.compile(r"""^(\w+)\s*=\s*["']([^"']+)["']""", re.MULTILINE)


def tasks_on_disk() -> set[str]:
    """Returns the names of the installed library's tasks; none if it is not installed."""
    return set(_registered())


def settings_of(task: str) -> dict[str, str] | None:
    """Returns the names of a task's settings with their annotations; None if the source does not tell."""
    registered = _registered().get(task)
    return None if registered is None else _fields(*registered)


def is_of_type(value: Any, annotation: str) -> bool:
    """Returns whether a setting may have the value, as far as its annotation is known."""
    try:
        TypeAdapter(_TYPES.get(annotation, Any)).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


@cache
def _registered() -> dict[str, tuple[str, str]]:
    """Returns the source file's text and the name of the settings' class of each task."""
    package = find_spec("reasoning_gym")
    folders = (package.submodule_search_locations or ()) if package else ()
    tasks: dict[str, tuple[str, str]] = {}
    for text in (file.read_text("utf-8") for folder in folders for file in Path(folder).rglob("*.py")):
        constants = dict(_CONSTANT.findall(text))
        for literal, name, config in _REGISTERED.findall(text):
            if task := literal or constants.get(name):
                tasks[task] = (text, config)
    return tasks


def _fields(text: str, config: str) -> dict[str, str] | None:
    """Returns the names and annotations of a class; None if it has base classes and may inherit more."""
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    if config not in classes or classes[config].bases:
        return None
    body = classes[config].body
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
