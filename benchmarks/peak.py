"""The most memory that a piece of work had at once."""

import itertools
from collections.abc import Callable

import torch


def peak_bytes(run: Callable[[], object], device: torch.device) -> int:
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as found:
        run()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(e.nbytes() for e in sorted(events, key=lambda event: event.start_ns())))
