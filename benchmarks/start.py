"""Time from `rlrun launch quickstart` to the line of its first step, of one or more installations, in turn.

    python benchmarks/start.py [--rounds 5] [RLRUN ...]

RLRUN is the command of an installation, such as `.venv/bin/rlrun`, which is also the default. One JSON
object: for each command the seconds of all rounds and their median. A round before the first is not counted.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("commands", nargs="*", default=[str(Path(sys.executable).with_name("rlrun"))])
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {command: [] for command in options.commands}
    for number in range(options.rounds + 1):
        for command in options.commands:
            first_step = seconds_to_first_step(command)
            seconds[command] += [round(first_step, 2)] if number else []
    medians = {command: statistics.median(rounds) for command, rounds in seconds.items()}
    print(json.dumps({"cores": os.cpu_count(), "seconds": seconds, "median": medians}, indent=2))


def seconds_to_first_step(command: str) -> float:
    """Launch a job of one step, and return the seconds until the line of this step."""
    with tempfile.TemporaryDirectory() as folder:
        settings = ["trainer.steps=1", "eval.before_training=false", f"runs_dir={folder}"]
        started, first_step, lines = time.perf_counter(), None, []
        process = subprocess.Popen(
            [command, "launch", "quickstart", *(part for setting in settings for part in ("--set", setting))],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step 1/"):
                first_step = time.perf_counter() - started
        if process.wait() or first_step is None:
            sys.exit(f"{command} failed:\n{''.join(lines)}")
        return first_step


if __name__ == "__main__":
    main()
