"""Sums up an optimizer step's metrics over micro-batches and ranks."""

from collections.abc import Mapping

import torch
import torch.distributed as dist

Values = Mapping[str, torch.Tensor | float]


class Meter:
    """Sums, maxima and durations by name; every rank must use the same names, whatever it saw, or agree."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}
        self._maxima: dict[str, torch.Tensor | float] = {}
        self._durations: dict[str, float] = {}

    def add(self, values: Values) -> None:
        """Add to sums over micro-batches and ranks."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def raise_to(self, values: Values) -> None:
        """Keep the largest of micro-batches and ranks."""
        for name, value in values.items():
            self._maxima[name] = max(float(value), float(self._maxima.get(name, 0.0)))

    def lengthen(self, values: Mapping[str, float]) -> None:
        """Add to sums over micro-batches, of which the largest rank's counts."""
        for name, value in values.items():
            self._durations[name] = self._durations.get(name, 0.0) + value

    def reduced(self, counts: bool, device: torch.device, *, agree: bool = False) -> dict[str, float]:
        """Values over all ranks, the same on each; `counts` false leaves this rank's sums out (a twin has
        them). `agree`: ranks have different names (not every stage of a pipeline sees losses).
        """
        if agree:
            self._agree()
        sums = {name: float(value) for name, value in sorted(self._sums.items())}
        peaks = {name: float(value) for name, value in sorted((self._maxima | self._durations).items())}
        if not (dist.is_initialized() and dist.get_world_size() > 1):
            return sums | peaks
        total = torch.tensor(list(sums.values()), dtype=torch.float64, device=device)
        if not counts:
            total.zero_()
        peak = torch.tensor(list(peaks.values()), dtype=torch.float64, device=device)
        dist.all_reduce(total, dist.ReduceOp.SUM)
        dist.all_reduce(peak, dist.ReduceOp.MAX)
        return dict(zip(sums, total.tolist(), strict=True)) | dict(zip(peaks, peak.tolist(), strict=True))

    def _agree(self) -> None:
        """Take up the names of all ranks."""
        mine = list(self._sums), list(self._maxima), list(self._durations)
        everyones: list[tuple[list[str], list[str], list[str]]] = [mine] * dist.get_world_size()
        dist.all_gather_object(everyones, mine)
        for sums, maxima, durations in everyones:
            self.add(dict.fromkeys(sums, 0.0))
            self.raise_to(dict.fromkeys(maxima, 0.0))
            self.lengthen(dict.fromkeys(durations, 0.0))
