"""States as drivers write them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rlrun.runner.host.process_identity import Owner


def now(seconds: float = 0.0) -> str:
    """A timestamp, so many seconds from now."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(timespec="seconds")


def state(**changes: Any) -> dict[str, Any]:
    """The state of a run that this process runs, with changes."""
    facts = {"status": "running", "started": now(), "updated": now(), "step": 0, "steps": None}
    facts |= {"seconds_left": None}
    return Owner.current().model_dump() | facts | {"metrics": {}, "error": None, "error_code": None} | changes


def write_state(folder: Path, **changes: Any) -> None:
    """state.json of such a run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").write_text(json.dumps(state(**changes)))
