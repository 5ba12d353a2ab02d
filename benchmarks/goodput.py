"""Goodput of a real asynchronous job whose trainer is killed at random times, beside the plan's formula.

    python benchmarks/goodput.py [--between 20 40 80] [--intervals 2 8 32] [--seconds 150]

A job with a small random model runs on this host. Its trainer rank gets SIGKILL at exponential times (Poisson
failures) with a mean of `--between` seconds; the job starts the rank again from the newest checkpoint. Each
mean is run with each `checkpoint.interval` for `--seconds` of training. Measured is the useful share of the
time since training began, of `run_time` in state.json; planned is `SavingPlan.goodput` with the step, the
checkpoint and the restart that the same run had, as medians and means. Prints one JSON object a run. A few
failures say little: run longer, or quote means over runs.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from trl_grpo import environment, rlrun_spec
from workload import Workload, write_model

from rlrun.runner.planning.saving_interval import SavingPlan
from rlrun.runner.records.metrics_file import read_metrics
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.run_time import RunTime, work_seconds

POLL_SECONDS = 0.2
STEPS = 100_000
"""More than any run takes: the job is stopped."""
SETTINGS = (
    "cluster.placement='disaggregated'",
    "rollout.mode='async'",
    "checkpoint.export_hf=false",
    f"fault_tolerance.trainer_restarts={STEPS}",
)
BACK = re.compile(r"the trainer is back after ([\d.]+) s")


def main() -> None:
    """Run every mean with every interval."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--between", type=float, nargs="+", default=[20, 40, 80], help="mean seconds")
    parser.add_argument("--intervals", type=int, nargs="+", default=[2, 8, 32])
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    work = Workload(prompts=4, samples=8, max_new=64, steps=STEPS, threads=1, hidden=128, layers=4)
    for between in options.between:
        for interval in options.intervals:
            with tempfile.TemporaryDirectory() as scratch:
                draw = random.Random(f"{options.seed} {between} {interval}")
                row = measure(work, Path(scratch), between, interval, options.seconds, draw)
            print(json.dumps(row), flush=True)


def measure(  # noqa: PLR0917
    work: Workload, scratch: Path, between: float, interval: int, seconds: float, draw: random.Random
) -> dict[str, Any]:
    """Runs one job, and compares its goodput with the plan's."""
    spec = scratch / "goodput.toml"
    spec.write_text(rlrun_spec(write_model(scratch / "model", work), work, scratch))
    overrides = [w for s in (*SETTINGS, f"checkpoint.interval={interval}") for w in ("--set", s)]
    command = [sys.executable, "-m", "rlrun", "launch", str(spec), "--name", "job", *overrides]
    folder = RunFolder(scratch / "runs" / "job")
    with (scratch / "output.txt").open("w") as output:
        job = subprocess.Popen(command, env=environment(work), stdout=output, stderr=output)
        kills = kill_at_random(job, folder, between, seconds, draw)
        job.send_signal(signal.SIGINT)
        job.wait(timeout=300)
    restarts = [float(text) for text in BACK.findall((scratch / "output.txt").read_text())]
    state = folder.read_state()
    time_used = RunTime.model_validate(state["run_time"])
    steps = [work_seconds(line) for line in read_metrics(folder.metrics)]
    trained = time_used.total - time_used.starting
    plan = SavingPlan(
        step_seconds=statistics.median(steps),
        waiting_seconds=time_used.between_steps / max(state["step"] / interval, 1),
        writing_seconds=0.0,
        restart_seconds=statistics.fmean(restarts) if restarts else 0.0,
        node_seconds=between,
        nodes=1,
    )
    return {
        "mean_seconds_between_failures": between,
        "interval": interval,
        "failures": kills,
        "steps": state["step"],
        "step_seconds": round(plan.step_seconds, 3),
        "checkpoint_seconds": round(plan.waiting_seconds, 3),
        "restart_seconds": round(plan.restart_seconds, 2),
        "measured": round(time_used.useful / trained, 3),
        "planned": round(plan.goodput(interval), 3),
        "best_interval": plan.best_interval,
        "lost": {name: round(lost / trained, 3) for name, lost in time_used.lost().items()},
    }


def kill_at_random(
    job: subprocess.Popen[bytes], folder: RunFolder, between: float, seconds: float, draw: random.Random
) -> int:
    """Kills the trainer at exponential times for as long as the run is measured; returns how often."""
    while not folder.metrics.exists():
        if job.poll() is not None:
            sys.exit(f"the job ended with status {job.returncode} before its first step")
        time.sleep(POLL_SECONDS)
    kills, end = 0, time.monotonic() + seconds
    due = time.monotonic() + draw.expovariate(1 / between)
    while (now := time.monotonic()) < end:
        if now >= due:
            due = now + draw.expovariate(1 / between)
            with suppress(ProcessLookupError, TypeError, KeyError):  # it is being started again
                os.kill(folder.read_state()["processes"]["trainer 0"], signal.SIGKILL)
                kills += 1
        time.sleep(POLL_SECONDS)
    return kills


if __name__ == "__main__":
    main()
