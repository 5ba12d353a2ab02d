"""Asynchronous against synchronous rollout where lengths vary: steps a minute, who waits, how stale.

    python benchmarks/async.py

The same job on our own engine: engines that take turns with the trainer (colocated, every core for whoever
works), the same with partial rollouts, engines and trainer on a core each (disaggregated), and asynchronous
with `max_staleness` 1 and 2.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from trl_grpo import environment, rlrun_spec
from workload import Workload, write_model

WORK = Workload(prompts=16, samples=8, max_new=384, mean=58, steps=12)
WAYS: dict[str, tuple[int, list[str]]] = {
    "colocated": (2, []),
    "colocated, partial": (
        2,
        ["rollout.partial=true", "rollout.oversample=24", "rollout.max_staleness=3"],
    ),
    "disaggregated": (1, ["cluster.placement='disaggregated'"]),
    "async, staleness 1": (1, ["cluster.placement='disaggregated'", "rollout.mode='async'"]),
    "async, staleness 2": (
        1,
        ["cluster.placement='disaggregated'", "rollout.mode='async'", "rollout.max_staleness=2"],
    ),
}
"""Threads of a process, and what is set."""


def main() -> None:
    """Run every way in turn, `--rounds` times, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model(Path(scratch) / "model", WORK)
        steps: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
        for number in range(rounds):
            for way in WAYS:
                steps[way] += run(way, folder, Path(scratch), f"{number}-{list(WAYS).index(way)}")
    report = {way: summarise(found) for way, found in steps.items()}
    base = report["disaggregated"]["steps_a_minute"]
    for figures in report.values():
        figures["ratio_to_disaggregated"] = round(figures["steps_a_minute"] / base, 2)
    print(json.dumps({"workload": WORK.as_dict(), "ways": report}, indent=1))


def run(way: str, folder: Path, scratch: Path, name: str) -> list[dict[str, float]]:
    """One job; its steps after the first two, which start it up."""
    threads, settings = WAYS[way]
    work = replace(WORK, threads=threads)
    spec = scratch / "bench.toml"
    spec.write_text(rlrun_spec(folder, work, scratch))
    overrides = [word for setting in settings for word in ("--set", setting)]
    command = [sys.executable, "-m", "rlrun", "launch", str(spec), "--name", name, *overrides]
    subprocess.run(command, env=environment(work), capture_output=True, check=True, timeout=1800)
    lines = (scratch / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "perf/step_time" in row][2:]


def summarise(steps: list[dict[str, float]]) -> dict[str, Any]:
    """Returns the figures of one way of generating, over all of its steps."""
    seconds = [row["perf/step_time"] for row in steps]
    return {
        "steps_a_minute": round(60 / statistics.mean(seconds), 2),
        "trainer_waits": round(statistics.median(row["perf/wait_ratio"] for row in steps), 3),
        "response_len": round(statistics.mean(row["rollout/response_len/mean"] for row in steps), 1),
        "staleness_max": dict(Counter(int(row["rollout/staleness/max"]) for row in steps)),
        "staleness_mean": round(statistics.mean(row["rollout/staleness/mean"] for row in steps), 2),
        "too_old": sum(row.get("rollout/dropped/staleness/too_old", 0) for row in steps),
    }


if __name__ == "__main__":
    main()
