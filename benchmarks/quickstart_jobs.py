"""The quickstart's job in this process, for benchmarks that repeat it.

Its metrics are kept in a folder: an interrupted benchmark continues with the jobs that it has not run yet.
"""

import json
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.local_job import run_local

RECIPE = Path(__file__).parents[1] / "rlrun/specs/recipes/quickstart.toml"
CHANGES = ("deterministic=true", "checkpoint.export_hf=false", "eval.interval=2", "eval.datasets.0.size=512")
"""An evaluation every two steps, on 512 sums; the same job gives the same numbers on the same processor."""


def run_job(
    name: str, folder: Path, changes: Sequence[str] = (), spec: str | None = None
) -> list[dict[str, Any]]:
    """Returns the metrics of each step, read from the folder where the job has run before.

    `changes` are arguments of `--set`; `spec` is the recipe with other sections. The first line has the CPU
    seconds of the whole job as `cpu_seconds`.
    """
    run = re.sub(r"\W+", "-", name)
    if (saved := folder / f"{run}.jsonl").is_file():
        return list(map(json.loads, saved.read_text().splitlines()))
    folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    file = folder / f"{run}.toml"
    file.write_text(RECIPE.read_text() if spec is None else spec)
    start = time.process_time()
    lines = run_local(file, folder / run, [*CHANGES, *changes]).lines
    lines[0]["cpu_seconds"] = time.process_time() - start
    partial = saved.with_suffix(".partial")
    partial.write_text("\n".join(map(json.dumps, lines)))
    partial.rename(saved)
    return lines


def accuracies(lines: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Returns the held-out accuracy by step."""
    name = "eval/held-out/reward"
    return {int(line["step"]): line[name] for line in lines if name in line}


def generated_tokens(lines: Sequence[dict[str, Any]], steps: int | None = None) -> int:
    """Returns the response tokens of the first steps, without those of evaluations."""
    rate, seconds = "perf/tokens_per_second/generated", "perf/rollout_time"
    return round(
        sum(
            line.get(rate, 0) * line.get(seconds, 0)
            for line in lines
            if steps is None or line["step"] <= steps
        )
    )


def first_step(lines: Sequence[dict[str, Any]], target: float) -> int | None:
    """Returns the step of the first evaluation that reached the target."""
    return next((step for step, accuracy in accuracies(lines).items() if accuracy >= target), None)
