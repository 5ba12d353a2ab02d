"""Names of the files and folders that a run writes per step: `checkpoints/step-12`,
`rollouts/step-12.jsonl.zst`."""

import re
from pathlib import Path

ROLLOUTS = ".jsonl.zst"
"""File extension of the saved samples of a step."""
_STEP = re.compile(r"step-(0|[1-9][0-9]*)")


def step_name(step: int, suffix: str = "") -> str:
    """Returns the name of a step's file or folder."""
    return f"step-{step}{suffix}"


def step_of(name: str, suffix: str = "") -> int | None:
    """Returns the step that a name made by `step_name` belongs to; None for every other name.

    Only the exact spelling counts: a user made `step-2.bak`, `step-02` and digits of other scripts, and rlrun
    must neither read nor delete them.
    """
    match = _STEP.fullmatch(name.removesuffix(suffix)) if name.endswith(suffix) else None
    return int(match[1]) if match else None


def list_step_paths(folder: Path, suffix: str = "") -> dict[int, Path]:
    """Returns the path of each step in a folder, ordered by step; other names are ignored."""
    steps = {step: path for path in folder.glob("*") if (step := step_of(path.name, suffix)) is not None}
    return dict(sorted(steps.items()))
