"""Names of the files and folders that a run writes per step: `checkpoints/step-12`,
`rollouts/step-12.jsonl.zst`, `rollouts/dropped-12.jsonl.zst`, `rollouts/eval-12.jsonl.zst`."""

import re
from pathlib import Path
from typing import Literal

ROLLOUTS = ".jsonl.zst"
"""File extension of the saved samples of a step."""
Kind = Literal["step", "dropped", "eval"]
"""What a file of samples holds: samples that a step trained on, samples that filters dropped, or samples of
the evaluation after a step."""
_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")
STEP_LIMIT = 10**15
"""Every step is below this, so that databases and browsers can hold it."""


def step_name(step: int, suffix: str = "", kind: Kind = "step") -> str:
    """Returns the name of a step's file or folder."""
    return f"{kind}-{step}{suffix}"


def step_of(name: str, suffix: str = "", kind: Kind = "step") -> int | None:
    """Returns the step that a name made by `step_name` belongs to; None for every other name.

    Only the exact spelling counts: a user made `step-2.bak`, `step-02`, digits of other scripts and steps
    from STEP_LIMIT on, and rlrun must neither read nor delete them.
    """
    if not (name.startswith(f"{kind}-") and name.endswith(suffix)):
        return None
    number = name.removesuffix(suffix).removeprefix(f"{kind}-")
    return int(number) if _NUMBER.fullmatch(number) else None


def list_step_paths(folder: Path, suffix: str = "", kind: Kind = "step") -> dict[int, Path]:
    """Returns the path of each step in a folder, ordered by step; other names are ignored."""
    steps = {
        step: path for path in folder.glob("*") if (step := step_of(path.name, suffix, kind)) is not None
    }
    return dict(sorted(steps.items()))
