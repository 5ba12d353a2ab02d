"""Checks rlrun's CUDA paths on this host: `python -m benchmarks.gpu [--only NAME…] [--seconds N]`.

Each check runs in a process of its own with its own limit, so that one that fails, hangs or dies
does not stop the others. Prints one JSON line per case (see results.py); exits with 1 where a case did not
pass. Without a GPU the checks run on the CPU with tiny models: then they only check the kit itself.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.gpu.checks import CHECKS, Check
from benchmarks.gpu.results import Result
from rlrun.runner.planning.hardware import driver_gpus

ROOT = Path(__file__).parents[2]
MIN_SECONDS = 10.0
"""A check with less time left is not started."""
SLOWNESS_OF_CPUS = 4
"""Without a GPU limits are so many times as long: development hosts are small and busy."""
WORK = "RLRUN_GPU_CHECK_FOLDER"
"""The variable that names the folder for models and checkpoints, which the checks share."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Run these checks: " + ", ".join(names()))
    parser.add_argument(
        "--seconds", type=float, default=float("inf"), help="The limit of all checks together."
    )
    parser.add_argument(
        "--logs", type=Path, default=Path("build/gpu-check"), help="Folder of logs and results."
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the check that runs is ended as well
    chosen = [check for check in CHECKS if not options.only or check.name in options.only]
    options.logs.mkdir(parents=True, exist_ok=True)
    passed = True
    with (options.logs / "results.jsonl").open("w", buffering=1) as file:
        for result in run_all(chosen, options.seconds, options.logs):
            print(result.line(), flush=True)
            file.write(result.line() + "\n")
            passed &= result.status in ("passed", "skipped")
    return 0 if passed else 1


def names() -> list[str]:
    return [check.name for check in CHECKS]


def run_all(checks: Sequence[Check], seconds: float, logs: Path) -> Iterator[Result]:
    """Runs checks one after the other within `seconds`; yields the results of all their cases."""
    start = time.monotonic()
    slowness = 1 if driver_gpus() else SLOWNESS_OF_CPUS
    work = tempfile.mkdtemp(prefix="rlrun-gpu-check-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    try:
        for check in checks:
            remaining = seconds - (time.monotonic() - start)
            if remaining < MIN_SECONDS:
                yield Result(check.name, "", "skipped", error="no time is left")
            else:
                yield from run_check(check, min(check.seconds * slowness, remaining), logs, Path(work))
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run_check(check: Check, limit: float, logs: Path, work: Path) -> Iterator[Result]:
    """Runs one check in a process of its own; yields its cases' results, and why the process ended early."""
    log, results = (logs / f"{check.name.replace(' ', '-')}.{kind}" for kind in ("log", "jsonl"))
    results.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "benchmarks.gpu.child",
        check.name,
        check.module,
        str(results),
        *check.cases,
    ]
    folders = [str(ROOT), str(ROOT / "benchmarks"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders), WORK: str(work)}
    start = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
    finished, running = read(results)
    yield from finished
    if code != 0:
        reason = f"ended with exit code {code}" if code is not None else f"had not ended after {limit:.0f} s"
        status = "error" if code is not None else "timeout"
        seconds = round(time.monotonic() - start, 1)
        yield Result(check.name, running, status, "", seconds, error=f"{reason}; {last_words(log)}")


def end(process: subprocess.Popen[bytes]) -> None:
    """Kills a check's process with everything that it started in its session."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def read(path: Path) -> tuple[list[Result], str]:
    """Returns the results that a check has written, and the case that was running at its end."""
    results, running = [], ""
    for line in path.read_text().splitlines() if path.exists() else ():
        fields = json.loads(line)
        if "begins" in fields:
            running = fields["begins"]
        else:
            results.append(Result(**fields))
            running = ""
    return results, running


def last_words(log: Path, count: int = 400) -> str:
    """Returns the end of a check's log."""
    return log.read_text(errors="replace").strip()[-count:]


if __name__ == "__main__":
    sys.exit(main())
