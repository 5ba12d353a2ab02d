"""Reads the YAML files of settings that slime's flags name."""

from typing import Any

import yaml

from rlrun.converters.slime.draft import Draft

_MAX_ALIASES = 20
"""Limits YAML aliases, because nested aliases can expand to gigabytes."""


def file_settings(draft: Draft, name: str) -> dict[str, Any] | None:
    """Returns the table in a flag's YAML file; if it cannot be read, adds a note and returns None."""
    flag = draft.flags.get(name)
    if flag is None:
        return None
    text = draft.read_file(draft.text(name) or "")
    if text is None:
        draft.note(flag, "the file was not found: its settings are left out")
        return None
    try:
        return _parse(text)
    except ValueError as error:
        draft.note(flag, f"the file {error}")
        return None


def _parse(text: str) -> dict[str, Any]:
    """Returns the table in a YAML text. Raises ValueError with the problem."""
    try:
        if sum(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text)) > _MAX_ALIASES:
            raise ValueError("has too many aliases to be read")
        settings = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"is not valid YAML: {' '.join(str(error).split())[:120]}") from None
    if not isinstance(settings, dict):
        raise ValueError("does not contain a table of settings")
    return settings
