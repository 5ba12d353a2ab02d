"""Times the answers to what newcomers mistype: every command of tests/cli/mistakes.txt as a process.

    python benchmarks/mistakes.py

Prints JSON: the exit code and seconds of each command, the slowest first, and their median.
"""

import json
import shlex
import statistics
import subprocess
import sys
import time
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # the table is the tests'
from tests.cli.test_mistakes import read_answers, write_files


def main() -> None:
    """Runs each command twice, the second time with warm files, and prints what it took."""
    with TemporaryDirectory() as folder, chdir(folder):
        write_files(Path(folder))
        rows = [timed(typed) for _ in range(2) for typed in read_answers()][len(read_answers()) :]
    rows.sort(key=lambda row: -row["seconds"])
    print(
        json.dumps({"median": statistics.median(row["seconds"] for row in rows), "commands": rows}, indent=1)
    )


def timed(typed: str) -> dict[str, Any]:
    """Runs one command."""
    command = [str(Path(sys.executable).with_name("rlrun")), *shlex.split(typed)[1:]]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return {
        "typed": typed,
        "code": done.returncode,
        "seconds": round(time.perf_counter() - start, 2),
    }


if __name__ == "__main__":
    main()
