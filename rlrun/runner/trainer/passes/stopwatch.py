"""Times parts of an optimizer step where they run: on a GPU by events in the order of its work.

The host only asks a GPU to work, so its own clock would measure how long asking takes.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


class Stopwatch:
    """Adds up the seconds of named parts."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: dict[str, list[tuple[Any, Any]]] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Adds the time of the work that the device gets within the context."""
        start = self._mark()
        yield
        self._spans.setdefault(name, []).append((start, self._mark()))

    def seconds(self) -> dict[str, float]:
        """Returns the sum of each part. The device must have done the work (`transfers.wait`)."""
        return {name: sum(_seconds(*span) for span in spans) for name, spans in self._spans.items()}

    def _mark(self) -> Any:
        """Returns a point in time: seconds, or on a GPU an event."""
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _seconds(start: Any, end: Any) -> float:
    seconds: float = end - start if isinstance(start, float) else start.elapsed_time(end) / 1000.0
    return seconds
