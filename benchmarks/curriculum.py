"""How many tokens does the quickstart generate until it gets 95 % of held-out sums right?

Runs the quickstart's job in this process, with rows in epochs (`uniform`), and with `type = "curriculum"`.
Each job is evaluated every 2 steps, on 512 sums. Tokens are the response tokens of all steps until then;
those of evaluations do not count.

    python benchmarks/curriculum.py [--only NAME …] [--seeds 1 2 3] [--folder FOLDER]

Prints one JSON line per job, and one per variant. A job takes about a minute of one core. Jobs whose metrics
are in the folder are only read.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.local_job import run_local

TARGET = 0.95
CHANGES = (
    "trainer.steps=28",
    "deterministic=true",
    "checkpoint.export_hf=false",
    "eval.interval=2",
    "eval.datasets.0.size=512",
)
RECIPE = Path(__file__).parents[1] / "rlrun/specs/recipes/quickstart.toml"
CURRICULUM = """\
[data]
type = "curriculum"
key = "entry.metadata.num_terms"
{keys}

[data.source]
"""


@dataclass(frozen=True)
class Variant:
    """The quickstart with other data."""

    keys: str | None = None
    """Keys of the curriculum; None: without one."""
    changes: tuple[str, ...] = ()
    """Arguments of `--set`."""


VARIANTS = {
    "uniform": Variant(),
    "uniform, 4 samples": Variant(changes=("rollout.samples_per_prompt=4",)),
    "curriculum, min_gain = 0.06": Variant("min_gain = 0.06"),
    "curriculum": Variant(""),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="rlrun-curriculum-"))
    for name in arguments.only:
        results = [_measure(name, seed, folder) for seed in arguments.seeds]
        reached = [result["tokens"] for result in results if result["tokens"] is not None]
        print(
            json.dumps(
                {
                    "variant": name,
                    "reached": f"{len(reached)} of {len(results)}",
                    "mean_tokens": round(fmean(reached)) if reached else None,
                    "mean_last_accuracy": round(fmean(result["last_accuracy"] for result in results), 3),
                }
            ),
            flush=True,
        )


def _measure(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Runs one job, and prints and returns its result."""
    run = re.sub(r"\W+", "-", f"{name}-{seed}")
    result = {"variant": name, "seed": seed, **until_target(_run(VARIANTS[name], run, seed, folder))}
    print(json.dumps(result), flush=True)
    return result


def _run(variant: Variant, run: str, seed: int, folder: Path) -> list[dict[str, float]]:
    """Returns the metrics of each step, of an earlier run if there is one."""
    if (saved := folder / f"{run}.jsonl").is_file():
        return list(map(json.loads, saved.read_text().splitlines()))
    text = RECIPE.read_text()
    if variant.keys is not None:
        data, end = CURRICULUM.format(keys=variant.keys), text.index("[rollout]")
        text = text[:end].replace("[data]\n", data) + text[end:]
    spec = folder / f"{run}.toml"
    spec.write_text(text)
    lines = run_local(spec, folder / run, [f"seed={seed}", *CHANGES, *variant.changes]).lines
    saved.write_text("\n".join(map(json.dumps, lines)))
    return lines


def until_target(steps: Iterable[Mapping[str, float]]) -> dict[str, Any]:
    """Returns the tokens and steps until the first evaluation that reached the target."""
    tokens, reached, accuracy = 0.0, None, 0.0
    for metrics in steps:
        tokens += metrics.get("perf/tokens_per_second/generated", 0) * metrics.get("perf/rollout_time", 0)
        accuracy = metrics.get("eval/held-out/reward", accuracy)
        if reached is None and accuracy >= TARGET:
            reached = {"tokens": round(tokens), "steps": int(metrics["step"])}
    return (reached or {"tokens": None, "steps": None}) | {"last_accuracy": accuracy}


if __name__ == "__main__":
    main()
