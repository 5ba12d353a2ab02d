"""How many tokens does the quickstart generate until it gets 95 % of held-out sums right?

Runs the quickstart's job in this process, with rows in epochs (`uniform`), with `type = "curriculum"`, and
with `rollout.probe_samples`. Each job is evaluated every 2 steps, on 512 sums. Tokens are the response tokens
of all steps until then; those of evaluations do not count.

    python benchmarks/curriculum.py [--only NAME …] [--seeds 1 2 3] [--folder FOLDER]

Prints one JSON line per job, and one per variant. A job takes a minute of one core. Jobs whose metrics are in
the folder are only read.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.quickstart_jobs import RECIPE, accuracies, first_step, generated_tokens, run_job

TARGET = 0.95
STEPS = 24
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

    @property
    def spec(self) -> str:
        """Returns the recipe with this data."""
        text = RECIPE.read_text()
        if self.keys is None:
            return text
        data, end = CURRICULUM.format(keys=self.keys), text.index("[rollout]")
        return text[:end].replace("[data]\n", data) + text[end:]


NOT_REPLACED = ('filters=[{type="nonzero_std"}]', "rollout.replace_dropped=false")
FOUR = "rollout.samples_per_prompt=4"
VARIANTS = {
    "uniform": Variant(),
    "budget": Variant("mean_samples = 4", NOT_REPLACED),
    "4 samples, not replaced": Variant(changes=(FOUR, *NOT_REPLACED)),
    "budget, equal groups counted": Variant("mean_samples = 4"),
    "4 samples": Variant(changes=(FOUR,)),
    "not replaced": Variant(changes=NOT_REPLACED),
    "early stop": Variant(changes=("rollout.probe_samples=4", "rollout.replace_dropped=false")),
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
    variant = VARIANTS[name]
    changes = [f"seed={seed}", f"trainer.steps={STEPS}", *variant.changes]
    lines = run_job(f"{name}-{seed}", folder, changes, variant.spec)
    steps, by_step = first_step(lines, TARGET), accuracies(lines)
    tokens = None if steps is None else generated_tokens(lines, steps)
    result = {"variant": name, "seed": seed, "tokens": tokens, "steps": steps}
    result["last_accuracy"] = by_step[max(by_step)]
    print(json.dumps(result), flush=True)
    return result


if __name__ == "__main__":
    main()
