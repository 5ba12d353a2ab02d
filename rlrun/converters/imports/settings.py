"""A setting of another trainer, as it is written in the imported file."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rlrun.converters.imports.secrets import is_secret, without_credentials

_MAX_TEXT = 60
"""Longer values are cut in notes."""


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
