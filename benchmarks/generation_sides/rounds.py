"""One side of benchmarks/generation.py as a process: it starts an engine, then runs a round for each line.

    python SIDE.py MODEL_FOLDER SETTINGS_JSON
    <- "ready"
    -> {"prompts": [[5, 17, …], …], "budgets": [128, …]}      a sample for each prompt, of so many new tokens
    <- 0.731                         the seconds of the round: of CPU time, with several threads of the clock

Imports nothing beyond the standard library, because other engines have an environment of their own.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Prompts = list[list[int]]
Generate = Callable[[Prompts, list[int]], int]
"""Generates as many tokens for each prompt as its budget says; returns their number."""


def run_rounds(start: Callable[[Path, dict[str, Any]], Generate]) -> None:
    """Runs the rounds on standard input with what `start` returns, given the model's folder and settings."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # some engines print to standard output
    settings = json.loads(sys.argv[2])
    generate = start(Path(sys.argv[1]), settings)
    clock = time.process_time if settings["threads"] == 1 else time.perf_counter
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        task = json.loads(line)
        began = clock()
        tokens = generate(task["prompts"], task["budgets"])
        seconds = clock() - began
        assert tokens == sum(task["budgets"]), f"{tokens} tokens instead of {sum(task['budgets'])}"
        print(json.dumps(seconds), file=answers, flush=True)
