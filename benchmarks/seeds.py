"""How well does each algorithm train the quickstart, over several seeds?

Runs the quickstart's job in this process with each algorithm and seed. Nothing else of `[algorithm]` is set.
Every job takes two optimizer steps per step: the ratio of the first is always 1, and most algorithms are the
same then. A seed decides which sums come, and what is sampled. The model is evaluated before training and
every two steps, on 512 held-out sums.

    python benchmarks/seeds.py [--only NAME …] [--seeds 1 2 3] [--folder FOLDER]

Prints one JSON line per job, and then the table of docs/algorithms.md: means over the seeds, with 95 %
intervals (Student's t), also of the accuracy's difference from GRPO's with the same seeds. A job takes half a
minute of one core. Jobs whose metrics are in the folder are only read.
"""

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.quickstart_jobs import accuracies, first_step, generated_tokens, run_job
from rlrun.runner.records.statistics import clustered_mean, paired_difference

BASELINE = "grpo"
ALGORITHMS = (
    BASELINE,
    *("dr_grpo", "gspo", "cispo", "rloo", "reinforce_plus_plus", "sapo", "dppo", "max_rl", "opo"),
)
TARGET = 0.9
CHANGES = ("trainer.steps=16", "trainer.optimizer_steps=2")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", default=ALGORITHMS, metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="rlrun-seeds-"))
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in options.only}
    for seed in options.seeds:  # the seeds one after the other: an interrupted table has all algorithms
        for name in options.only:
            results[name].append(result := measure(name, seed, folder))
            print(json.dumps(result), flush=True)
    names = ("`type`", "accuracy", f"minus {BASELINE}'s", f"steps to {TARGET}", "entropy", "clipped tokens")
    names += ("tokens", "CPU seconds")
    print(f"| {' | '.join(names)} |\n|{' --- |' * len(names)}")
    for name in options.only:
        print(row(name, results[name], results.get(BASELINE, ())))


def measure(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Runs one job, and returns its result."""
    lines = run_job(f"{name}-{seed}", folder, [f"algorithm.type={name}", f"seed={seed}", *CHANGES])
    by_step = accuracies(lines)
    clipped = [line["train/clip_frac"] for line in lines if "train/clip_frac" in line]
    return {
        "algorithm": name,
        "seed": seed,
        "accuracy": by_step[max(by_step)],
        "steps": first_step(lines, TARGET),
        "entropy": lines[-1]["train/entropy"],
        "clipped": sum(clipped) / len(clipped) if clipped else None,
        "tokens": generated_tokens(lines),
        "cpu_seconds": lines[0]["cpu_seconds"],
    }


def row(name: str, results: Sequence[dict[str, Any]], baseline: Sequence[dict[str, Any]]) -> str:
    """Returns an algorithm's line of the table; `baseline` has the results of the same seeds with another."""
    steps = sorted(math.inf if (step := result["steps"]) is None else step for result in results)
    cells = (
        f"`{name}`",
        _with_interval(results, "accuracy", "{:.3f}"),
        "" if name == BASELINE or not baseline else _difference(baseline, results),
        ", ".join("not reached" if step == math.inf else str(step) for step in steps),
        _with_interval(results, "entropy", "{:.4f}"),
        _mean(results, "clipped"),
        _with_interval(results, "tokens", "{:,.0f}"),
        _with_interval(results, "cpu_seconds", "{:.0f}"),
    )
    return f"| {' | '.join(cells)} |"


def _with_interval(results: Sequence[dict[str, Any]], name: str, form: str) -> str:
    """Returns the mean over the seeds, and half of the width of its 95 % interval."""
    estimate = clustered_mean([[result[name]] for result in results])
    assert estimate is not None
    return f"{form.format(estimate.mean)} ± {form.format(estimate.high - estimate.mean)}"


def _mean(results: Sequence[dict[str, Any]], name: str) -> str:
    """Returns the mean over the seeds; nothing for an algorithm without this metric."""
    values = [result[name] for result in results if result[name] is not None]
    return f"{fmean(values):.4f}" if values else ""


def _difference(first: Sequence[dict[str, Any]], second: Sequence[dict[str, Any]]) -> str:
    """Returns the mean difference of the accuracies of the same seeds, and half the width of its interval."""
    values = ([[result["accuracy"]] for result in results] for results in (first, second))
    difference = paired_difference(*values)
    assert difference is not None
    return f"{difference.mean:+.3f} ± {difference.high - difference.mean:.3f}"


if __name__ == "__main__":
    main()
