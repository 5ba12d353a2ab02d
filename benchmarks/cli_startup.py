"""CPU time of `rlrun validate`, against the interpreter alone and pydantic alone, in one run.

    python benchmarks/cli_startup.py [--rounds 11] [SPEC ...]

Without SPECs, every shipped recipe. One JSON object: CPU seconds (user and system, all threads), the least
and the median of the rounds.
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

RECIPES = Path(__file__).parents[1] / "rlrun" / "specs" / "recipes"
PROGRAMS = {
    "python -c pass": ["-c", "pass"],
    "import pydantic": ["-c", "import pydantic"],
    "a pydantic model": ["-c", "from pydantic import BaseModel\nclass A(BaseModel):\n  a: int = 1\nA()"],
    "rlrun --help": ["-m", "rlrun", "--help"],
}


def main() -> None:
    """Print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("specs", nargs="*")
    options = parser.parse_args()
    specs = options.specs or [str(path) for path in sorted(RECIPES.glob("*.toml"))]
    programs = PROGRAMS | {
        f"rlrun validate {Path(spec).stem}": ["-m", "rlrun", "validate", spec] for spec in specs
    }
    taken: dict[str, list[float]] = {name: [] for name in programs}
    with tempfile.TemporaryDirectory() as compiled:
        for number in range(options.rounds + 1):  # round by round: a busy machine is busy for all
            for name, arguments in programs.items():
                seconds = cpu_seconds([sys.executable, *arguments], compiled)
                taken[name] += [seconds] if number else []  # the first compiles, as installing does
    found = {
        name: {"least": round(min(seconds), 3), "median": round(statistics.median(seconds), 3)}
        for name, seconds in taken.items()
    }
    slowest = max((name for name in found if "validate" in name), key=lambda name: found[name]["median"])
    print(json.dumps(found | {"slowest": slowest}, indent=2))


def cpu_seconds(command: list[str], compiled: str) -> float:
    """What a command and its children take, with byte code under `compiled`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"PYTHONPYCACHEPREFIX": compiled, "COLUMNS": "100"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
