"""CPU-seconds of `rlrun plugins list` in an environment with 200 more distributions.

    python benchmarks/plugins_list.py [--distributions 200] [--rounds 7]

One JSON line: the median CPU time of the whole command, of the same with no distributions more, and of
`python -c pass`.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

COMMAND = "import sys; sys.argv = ['rlrun', 'plugins', 'list']; from rlrun.cli.main import run; run()"


def main() -> None:
    """Prints the seconds that the command takes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--distributions", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.distributions):
            add_distribution(Path(folder), number)
        timed = {
            "plugins list": lambda: cpu_seconds(COMMAND, folder),
            "without the others": lambda: cpu_seconds(COMMAND, None),
            "python -c pass": lambda: cpu_seconds("pass", None),
        }
        rounds = [{name: run() for name, run in timed.items()} for _ in range(arguments.rounds)]
    result = {name: round(statistics.median(one[name] for one in rounds), 3) for name in timed}
    print(json.dumps({"distributions": arguments.distributions, **result}))


def add_distribution(folder: Path, number: int) -> None:
    """A distribution as pip leaves it; every tenth announces a reward."""
    info = folder / f"other_{number}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: other-{number}\nVersion: 1.0\n" + "x\n" * 200
    )
    group = "rlrun.rewards" if number % 10 == 0 else "console_scripts"
    (info / "entry_points.txt").write_text(f"[{group}]\nother_{number} = other_{number}:Main\n")


def cpu_seconds(code: str, folder: str | None) -> float:
    """User and system time of a Python that runs `code`."""
    path = {"PYTHONPATH": folder} if folder else {}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **path},
        check=True,
        stdout=subprocess.DEVNULL,
        timeout=60,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
