"""Compare finished quickstart runs: a table for docs/quickstart.md, and their curves in one picture.

python examples/quickstart/summarize.py PICTURE.png runs/quickstart runs/quickstart-2 ...
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

ACCURACY = "eval/held-out/pass@1"
LENGTH = "rollout/response_len/mean"
TIMES = ("perf/step_time", "perf/eval_time")


@dataclass(frozen=True)
class Run:
    """What one run measured, by step."""

    seed: int
    accuracy: dict[int, float]
    length: dict[int, float]
    step_seconds: float
    seconds: float
    """Steps and evaluations."""


def read(folder: Path) -> Run:
    """The run in a run folder."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    seed = json.loads((folder / "spec.lock.json").read_text())["spec"]["seed"]
    accuracy, length = (
        {line["step"]: line[name] for line in lines if name in line} for name in (ACCURACY, LENGTH)
    )
    step, evaluation = (sum(line.get(name, 0.0) for line in lines) for name in TIMES)
    return Run(seed, accuracy, length, step, step + evaluation)


def table(runs: list[Run]) -> str:
    """Markdown: one row a run."""
    head = ["seed", "before", "after", "steps", "training", "with evaluation"]
    rows = [head, ["---"] * len(head)]
    for run in runs:
        points = sorted(run.accuracy.items())
        before, after = points[0][1], points[-1][1]
        times = (f"{run.step_seconds:.0f} s", f"{run.seconds:.0f} s")
        rows.append([str(run.seed), f"{before:.3f}", f"{after:.3f}", str(points[-1][0]), *times])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def draw(runs: list[Run], path: Path) -> None:
    """Held-out accuracy and response length over the steps."""
    figure = Figure(figsize=(10, 4), dpi=120, layout="constrained")
    left, right = figure.subplots(1, 2)
    for run in runs:
        left.plot(
            *zip(*run.accuracy.items(), strict=True), marker="o", markersize=4, label=f"seed {run.seed}"
        )
        right.plot(*zip(*run.length.items(), strict=True), label=f"seed {run.seed}")
    left.set(title="held-out accuracy", xlabel="step", ylim=(0, 1))
    right.set(title="mean response length, tokens", xlabel="step", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.legend()
    figure.savefig(path)


def main(picture: Path, folders: list[Path]) -> None:
    """Print the table, draw the picture."""
    runs = [read(folder) for folder in folders]
    print(table(runs))
    draw(runs, picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(folder) for folder in sys.argv[2:]])
