"""Reads the YAML files of settings that slime's flags name."""

from typing import Any

from rlrun.converters.imports.yaml_table import yaml_table
from rlrun.converters.slime.draft import Draft


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
        return yaml_table(text)
    except ValueError as error:
        draft.note(flag, f"the file {error}")
        return None
