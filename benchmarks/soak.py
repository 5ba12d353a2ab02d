"""Thousands of asynchronous steps of one job: what grows per step, in each of its processes.

    python benchmarks/soak.py
    python benchmarks/soak.py --steps 6000 --keep runs-of-the-soak

Trainer, engine, rewards and Ray run on this host with a small random model, a few samples per step and a
short checkpoint interval, so that every part of a step happens thousands of times in minutes. Every `--every`
steps the processes are measured: memory of their own (anonymous pages), resident set (RSS), proportional set
(PSS, which also moves with what else runs on the host), shared memory, descriptors and threads; and what lies
in /dev/shm under the run's name. A line is fitted by least squares to what follows the warm-up. Prints one
JSON object: for each process and quantity the last value, the slope per step and its standard error. A slope
within two standard errors of 0 is not a leak.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from trl_grpo import environment, rlrun_spec
from workload import Workload, write_model

POLL_SECONDS = 0.05
WARM_UP = 0.25
"""Share of the steps that caches and allocators take to fill."""
SETTINGS = (
    "cluster.placement='disaggregated'",
    "rollout.mode='async'",
    "rollout.max_staleness=2",
    "checkpoint.interval=200",
    "checkpoint.keep=2",
)
UNITS = {
    "anonymous": "KiB",
    "pss": "KiB",
    "rss": "KiB",
    "shared": "KiB",
    "descriptors": "",
    "threads": "",
    "kib": "KiB",
    "files": "",
}
NAMES = (
    "gcs_server",
    "raylet",
    "log_monitor",
    "runtime_env_agent",
    "dashboard_agent",
    "dashboard",
    "monitor",
)
"""Of Ray's own processes, as their command lines have them."""


def main() -> None:
    """Run the job, measure it while it runs, and print the slopes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--every", type=int, default=20, help="steps from one measurement to the next")
    parser.add_argument("--keep", type=Path, help="folder for the run and its measurements")
    arguments = parser.parse_args()
    work = Workload(
        prompts=1, samples=4, max_new=8, steps=arguments.steps, threads=1, vocab=512, hidden=64, layers=2
    )
    with tempfile.TemporaryDirectory() as temporary:
        scratch = (arguments.keep or Path(temporary)).resolve()
        scratch.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        rows = measured(work, scratch, arguments.every)
        seconds = time.monotonic() - started
        (scratch / "measurements.json").write_text(json.dumps(rows))
        first = arguments.steps * WARM_UP
        report = slopes([row for row in rows if row["step"] >= first])
        print(
            json.dumps(
                {
                    "workload": work.as_dict(),
                    "settings": SETTINGS,
                    "steps": rows[-1]["step"],
                    "seconds": round(seconds, 1),
                    "measurements": len(rows),
                    "fitted_from_step": int(first),
                    "processes": report,
                },
                indent=1,
            )
        )


def measured(work: Workload, scratch: Path, every: int) -> list[dict[str, Any]]:
    """One row for every `every` steps of the job, `{"step", process: {quantity: value}}`."""
    spec = scratch / "soak.toml"
    spec.write_text(rlrun_spec(write_model(scratch / "model", work), work, scratch))
    overrides = [word for setting in SETTINGS for word in ("--set", setting)]
    command = [sys.executable, "-m", "rlrun", "launch", str(spec), "--name", "soak", "--new", *overrides]
    rows: list[dict[str, Any]] = []
    with (scratch / "output.txt").open("w") as output:
        job = psutil.Popen(command, env=environment(work), stdout=output, stderr=output)
        metrics = scratch / "runs" / "soak" / "metrics.jsonl"
        steps = _steps(metrics)
        step = 0
        while job.poll() is None:
            step += next(steps)
            if step // every > (rows[-1]["step"] // every if rows else 0):
                with suppress(psutil.Error, OSError):  # a process that ends while it is looked at
                    rows.append({"step": step, **snapshot(job, metrics.parent)})
            time.sleep(POLL_SECONDS)
    if job.returncode != 0:
        sys.exit(f"the job ended with status {job.returncode}; see {output.name}")
    return rows


def snapshot(job: psutil.Process, folder: Path) -> dict[str, dict[str, float]]:
    """Each process's figures by its part in the job; processes of one part are added up."""
    parts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for process in [job, *job.children(recursive=True)]:
        with suppress(psutil.Error, OSError):
            part = "driver" if process.pid == job.pid else _part(process)
            for name, value in _figures(process).items():
                parts[part][name] += value
    shared = [file.stat().st_size for file in Path("/dev/shm").glob("*rlrun-soak*") if file.is_file()]
    parts["/dev/shm"] = {"files": len(shared), "kib": sum(shared) / 1024}
    parts["run folder"] = {"files": sum(1 for _ in folder.rglob("*"))}
    return parts


def _part(process: psutil.Process) -> str:
    words = " ".join(process.cmdline())
    if words.startswith("ray::"):
        return words.removeprefix("ray::").split(".")[0].split()[0]
    if "rlrun.runner.scoring" in words:
        return "reward workers"
    return next((name for name in NAMES if name in words), process.name())


def _figures(process: psutil.Process) -> dict[str, float]:
    """KiB and counts, from /proc."""
    rollup = _fields(Path(f"/proc/{process.pid}/smaps_rollup").read_text())
    status = _fields(Path(f"/proc/{process.pid}/status").read_text())
    return {
        "anonymous": rollup["Anonymous"],
        "pss": rollup["Pss"],
        "rss": rollup["Rss"],
        "shared": status["RssShmem"],
        "descriptors": process.num_fds(),
        "threads": process.num_threads(),
    }


def _fields(text: str) -> dict[str, float]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: float(rest.split()[0]) for name, _, rest in pairs if rest.strip().endswith("kB")}


def _steps(metrics: Path) -> Iterator[int]:
    """How many steps ended since it was last asked."""
    offset = 0
    while True:
        count = 0
        if metrics.exists():
            with metrics.open("rb") as file:
                file.seek(offset)
                text = file.read()
                offset += len(text)
                count = text.count(b"\n")
        yield count


def slopes(rows: list[dict[str, Any]]) -> Mapping[str, Mapping[str, Mapping[str, float]]]:
    """Returns the last value, the slope per step and its standard error, by process and quantity."""
    report: dict[str, dict[str, dict[str, float]]] = defaultdict(dict)
    for part in dict.fromkeys(name for row in rows for name in row if name != "step"):
        there = [row for row in rows if part in row]
        if len(there) < 10:
            continue
        steps = np.array([row["step"] for row in there], float)
        for name in there[-1][part]:
            values = np.array([row[part].get(name, 0.0) for row in there])
            slope, error = line(steps, values)
            report[part][f"{name} {UNITS[name]}".strip()] = {
                "last": round(float(values[-1]), 1),
                "slope": round(slope, 5),
                "error": round(error, 5),
            }
    return report


def line(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Slope by least squares, and its standard error."""
    centred = x - x.mean()
    spread = float((centred**2).sum())
    slope = float((centred * y).sum()) / spread
    rest = y - y.mean() - slope * centred
    return slope, float(np.sqrt((rest**2).sum() / (len(x) - 2) / spread))


if __name__ == "__main__":
    main()
