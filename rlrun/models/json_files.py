"""JSON files that came with a model or that rlrun wrote: an error names the file that is broken."""

import json
from pathlib import Path
from typing import Any


def read_table(path: Path) -> dict[str, Any]:
    """Returns the object that a JSON file holds. ValueError names a file that holds none, and the line that
    is broken; OSError where there is no file.
    """
    try:
        table = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not valid JSON: {error}; copy the file again") from None
    if not isinstance(table, dict):
        raise ValueError(f"{path} holds no table of settings; copy the file again")
    return table
