"""`rlrun preferences`: writes a run's samples as rows with a preferred and a rejected response."""

import json
from pathlib import Path
from typing import Annotated

import typer

from rlrun.cli.arguments import RunName, RunsDir


def command(
    name: RunName = None,
    *,
    runs_dir: RunsDir = Path("runs"),
    gap: Annotated[
        float, typer.Option(min=0.0, help="Leave out prompts whose responses' rewards differ by less.")
    ] = 0.0,
) -> None:
    """Print the best and the worst response to each prompt of a run, for bradley_terry, dpo and others.

    One JSON line for each prompt whose saved samples have different rewards, with the keys prompt, response,
    rejected and metadata. A run saves about 32 samples of each step, or with debug.save_rollouts all.
    """
    from rlrun.cli.run_states import find_run
    from rlrun.runner.records.preferences import preferences_of

    folder, count = find_run(runs_dir, name), 0
    for row in preferences_of(folder, gap):
        print(json.dumps(row))
        count += 1
    if not count:
        raise ValueError(
            f"{folder.name} has no saved samples of one prompt whose rewards differ"
            + (f" by {gap:g} or more: lower --gap" if gap else "")
        )
