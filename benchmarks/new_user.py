"""Times a new user's path: from a clone to a learning curve, and from rows of one's own to a running job.

    python benchmarks/new_user.py [--repository URL] [--folder DIR]

Clones the repository into an empty folder, installs it there with make, and runs `make quickstart` to its
end. Then writes rows.jsonl, and runs `rlrun init --data rows.jsonl` and `rlrun launch` until the first step
is done.
Operators are compiled as on a new machine. Prints JSON: seconds of each part, commands and edits.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROWS = [{"question": f"What is {a} + {b}?", "answer": a + b} for a in range(10, 30) for b in range(10, 30)]


def main() -> None:
    """Take the path in a folder of its own and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repository", default=str(Path(__file__).parents[1]), help="What git clones.")
    parser.add_argument("--folder", type=Path, help="Empty folder to work in; a temporary one when left out.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="new-user-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        os.environ["RLRUN_CACHE"] = str(folder / "cache")
        print(json.dumps({"cores": os.cpu_count(), **path(arguments.repository, folder)}, indent=1))


def path(repository: str, folder: Path) -> dict[str, object]:
    """Clone, install, quickstart, and a job on rows of one's own."""
    clone = folder / "rlrun"
    cloning = seconds(["git", "clone", "-q", repository, str(clone)], folder)
    install = seconds(["make", ".venv/.run"], clone)
    quickstart = until(["make", "quickstart"], clone, "step 1/", stop=False)
    (clone / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS), encoding="utf-8")
    commands = [
        ["init", "own.toml", "--model", "package:quickstart/model", "--data", "rows.jsonl"],
        ["launch", "own.toml"],
    ]
    rlrun = str(clone / ".venv" / "bin" / "rlrun")
    writing = seconds([rlrun, *commands[0]], clone)
    launching = until([rlrun, *commands[1]], clone, "step 1/", stop=True)
    return {
        "clone": {"seconds": cloning},
        "install": {"seconds": install},
        "quickstart": {
            "commands": 1,
            "seconds_to_first_step": quickstart[0],
            "seconds_to_learning_curve": quickstart[1],
        },
        "clone_to_learning_curve_without_install": round(cloning + quickstart[1], 1),
        "own_rows": {
            "commands": [" ".join(["rlrun", *one]) for one in commands],
            "edits": 0,
            "seconds_to_first_step": round(writing + launching[0], 1),
        },
    }


def seconds(command: list[str], folder: Path) -> float:
    """How long a command takes; what it prints goes to standard error."""
    started = time.monotonic()
    subprocess.run(command, cwd=folder, check=True, stdout=sys.stderr)
    return round(time.monotonic() - started, 1)


def until(command: list[str], folder: Path, text: str, *, stop: bool) -> tuple[float, float]:
    """Seconds until a job prints a line that begins with `text`, and until it ends.

    `stop`: it is interrupted then, as by Ctrl-C.
    """
    started, reached = time.monotonic(), None
    job = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert job.stdout is not None
    for line in job.stdout:
        sys.stderr.write(line)
        if reached is None and line.startswith(text):
            reached = time.monotonic() - started
            if stop:
                job.send_signal(signal.SIGINT)
    code = job.wait()
    if reached is None or code not in ((130,) if stop else (0,)):
        raise SystemExit(f"{' '.join(command)} ended with exit code {code}")
    return round(reached, 1), round(time.monotonic() - started, 1)


if __name__ == "__main__":
    main()
