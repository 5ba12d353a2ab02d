"""Reads values that are written as text on a command line or in YAML."""

import re
from typing import Any

from rlrun.converters.imports.yaml_table import yaml_value

_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


def written_value(text: str) -> Any:
    """Returns the value that a text stands for: `1e-6`, `true`, `null`, `[a, b]`, `{a: 1}`; else the text."""
    plain = text.strip()
    if _NUMBER.fullmatch(plain):
        try:
            return int(plain) if plain.lstrip("+-").isdecimal() else float(plain)
        except ValueError:
            return text
    words = {"true": True, "false": False, "null": None, "none": None, "~": None}
    if plain.lower() in words:
        return words[plain.lower()]
    if plain[:1] in ("[", "{", '"', "'"):
        try:
            return numbers_read(yaml_value(plain))
        except ValueError:
            return text
    return text


def numbers_read(value: Any) -> Any:
    """Returns a value of YAML in which numbers such as `1e-6`, which YAML takes for text, are numbers."""
    if isinstance(value, dict):
        return {str(name): numbers_read(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [numbers_read(inner) for inner in value]
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return written_value(value)
    return value if isinstance(value, bool | int | float | str | None) else str(value)
