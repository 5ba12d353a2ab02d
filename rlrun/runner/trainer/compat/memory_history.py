"""torch's record of GPU allocations, for https://pytorch.org/memory_viz."""

from pathlib import Path

import torch

_MAX_EVENTS = 200_000


def start_recording() -> None:
    """Begins to record allocations with their call stacks."""
    torch.cuda.memory._record_memory_history(max_entries=_MAX_EVENTS)


def write_snapshot(path: Path) -> None:
    """Writes what was recorded, and stops recording."""
    torch.cuda.memory._dump_snapshot(str(path))
    torch.cuda.memory._record_memory_history(enabled=None)
