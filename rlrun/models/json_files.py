"""Reads JSON files; its errors name the file that is broken."""

import json
from pathlib import Path
from typing import Any


def read_json_object(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises ValueError, with the file and the line, for invalid JSON and for anything but an object, and
    OSError if the file does not exist.
    """
    try:
        contents = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}; copy the file again") from None
    if not isinstance(contents, dict):
        raise ValueError(f"{path} does not hold a JSON object; copy the file again")
    return contents
