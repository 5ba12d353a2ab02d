"""Runs the cases of one check in this process: `python -m benchmarks.gpu.child CHECK MODULE RESULTS [CASE…]`.

RESULTS gets a line when a case begins and its result when it ends, so that the runner knows which case was
running when this process hung or died.
"""

import json
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.results import Case, Result, Skipped, described, judge


def main(check: str, module: str, results: Path, chosen: Sequence[str]) -> None:
    loaded = import_module(module)
    cases: Mapping[str, Case] = loaded.CASES
    with results.open("w", buffering=1) as file:
        for name in chosen or cases:
            file.write(json.dumps({"begins": name}) + "\n")
            result = run(check, name, cases[name])
            file.write(result.line() + "\n")
            free_memory()
    if hasattr(loaded, "close"):
        loaded.close()


def run(check: str, name: str, case: Case) -> Result:
    """Runs one case. Whatever it raises is its result, so that the next case can run."""
    start = time.perf_counter()
    try:
        measurement = case()
    except Skipped as reason:
        return Result(check, name, "skipped", error=str(reason))
    except Exception as error:
        traceback.print_exc()
        return Result(
            check, name, "error", device(), seconds(start), error=f"{type(error).__name__}: {error}"[:600]
        )
    status, missed = judge(measurement)
    return Result(check, name, status, device(), seconds(start), described(measurement), missed)


def seconds(start: float) -> float:
    return round(time.perf_counter() - start, 1)


def device() -> str:
    """Returns the name of the GPU that was used; `cpu` without one."""
    torch = sys.modules.get("torch")
    return torch.cuda.get_device_name() if torch is not None and torch.cuda.is_available() else "cpu"


def free_memory() -> None:
    """Frees what a failed case left on the GPU: its exception held the tensors until now."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        import gc

        gc.collect()
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4:])
