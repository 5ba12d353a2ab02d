"""Names of what a run keeps for each step: `checkpoints/step-12`, `rollouts/step-12.jsonl.zst`."""

import re
from pathlib import Path

ROLLOUTS = ".jsonl.zst"
"""How the names of a step's samples end."""
_STEP = re.compile(r"step-(0|[1-9][0-9]*)")


def step_name(step: int, suffix: str = "") -> str:
    """Returns the name of a step's file or folder."""
    return f"step-{step}{suffix}"


def step_of(name: str, suffix: str = "") -> int | None:
    """Returns the step that a name made by `step_name` belongs to; None for every other name.

    Only the exact spelling counts: `step-2.bak`, `step-02` and digits of other scripts are names that people
    gave, and rlrun neither reads nor deletes what has them.
    """
    match = _STEP.fullmatch(name.removesuffix(suffix)) if name.endswith(suffix) else None
    return int(match[1]) if match else None


def list_step_paths(folder: Path, suffix: str = "") -> dict[int, Path]:
    """Returns what a folder holds for each step, the first step first; everything else is passed over."""
    steps = {step: path for path in folder.glob("*") if (step := step_of(path.name, suffix)) is not None}
    return dict(sorted(steps.items()))
