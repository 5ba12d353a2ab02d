"""Settings of another trainer, and values, as they are written in the imported file."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.converters.imports.secrets import is_secret, without_credentials
from rlrun.converters.imports.yaml_table import yaml_value

_MAX_TEXT = 60
"""Longer values are cut in notes."""
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")


@dataclass(slots=True)
class Setting:
    """A setting of the imported file."""

    name: str
    """The trainer's own name, such as `learning_rate` or `data.train_batch_size`."""
    value: Any
    location: str
    """File and line, such as `train.py:12`."""
    earlier: "Setting | None" = None
    """The previous setting of the same name, which this one replaces."""

    @property
    def before(self) -> Iterator["Setting"]:
        """Yields the earlier settings of the same name, the latest first."""
        setting = self.earlier
        while setting is not None:
            yield setting
            setting = setting.earlier

    def __str__(self) -> str:
        if is_secret(self.name):
            return f"{self.name}=…"
        if isinstance(self.value, dict):
            return f"{self.name}={{…}}" if self.value else f"{self.name}={{}}"
        if isinstance(self.value, list) and any(isinstance(item, dict) for item in self.value):
            return f"{self.name}=[…]"
        text = without_credentials(str(self.value))
        text = "".join(character if character.isprintable() else " " for character in text)
        return f"{self.name}={text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT] + '…'}"


def add_setting(settings: dict[str, Setting], name: str, value: Any, location: str) -> None:
    """Adds a setting, which replaces an earlier one of the same name."""
    settings[name] = Setting(name, value, location, settings.pop(name, None))


def source_text(path: Path) -> str:
    """Returns the text of a file. Raises ValueError if it cannot be read."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text: byte {error.start} is not UTF-8") from None


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
