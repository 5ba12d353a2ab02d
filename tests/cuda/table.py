"""Prints how often a training step blocks the host, by layout: python -m tests.cuda.table"""

import tempfile
from pathlib import Path
from typing import Any

from tests.cuda.budgets import Blocking
from tests.cuda.cases import ADAPTERS, ALL, COMPILE, STAGES, Case
from tests.cuda.tracer import Tracer, blocking, reason_to_skip

CASES = {
    "one rank": Case("qwen3"),
    "`fsdp` 2": Case("qwen3", {"fsdp": 2}),
    "`tensor` 2": Case("qwen3", {"tensor": 2}),
    "`context` 2": Case("qwen3", {"context": 2}),
    "`pipeline` 2, 1F1B, first stage": Case("qwen3", STAGES),
    "`fsdp` 2, `expert` 2": Case("qwen3-moe", {"fsdp": 2, "expert": 2}),
    "`fsdp` 2, compiled": Case("qwen3", {"fsdp": 2}, COMPILE),
    "`fsdp` 2, with adapters": Case("qwen3", {"fsdp": 2}, ADAPTERS),
    '`fsdp` 2, `offload = "all"`': Case("qwen3", {"fsdp": 2}, ALL),
}


def main() -> None:
    """Traces a few layouts, and prints waits / uploads / downloads of a step and of each micro-batch."""
    if reason := reason_to_skip():
        raise SystemExit(reason)
    print("| layout | per step | per micro-batch |\n| --- | --- | --- |", flush=True)
    with tempfile.TemporaryDirectory() as folder, Tracer(Path(folder)) as tracer:
        for label, case in CASES.items():
            trace = tracer.run(case)
            if trace["error"] is not None:
                raise SystemExit(f"{label}: {trace['error']}")
            step, micro_batch = split(trace)
            print(f"| {label} | {shown(step)} | {shown(micro_batch)} |", flush=True)


def split(trace: dict[str, Any]) -> tuple[Blocking, Blocking]:
    """Returns what an update blocks the host once, and what each of its micro-batches does."""
    sizes = trace["result"]
    few, many = (blocking(trace["phases"][f"train {label}"]["counts"]) for label in ("few", "many"))
    more = sizes["many"] - sizes["few"]
    each = Blocking(
        (many.waits - few.waits) // more,
        (many.uploads - few.uploads) // more,
        (many.downloads - few.downloads) // more,
    )
    return few + each * -sizes["few"], each


def shown(blocked: Blocking) -> str:
    """Returns counts as a cell of the table."""
    return f"{blocked.waits} / {blocked.uploads} / {blocked.downloads}"


if __name__ == "__main__":
    main()
