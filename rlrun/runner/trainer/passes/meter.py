"""Metrics of an optimizer step, reduced over micro-batches and ranks."""

from collections.abc import Mapping

import torch
import torch.distributed as dist

Values = Mapping[str, torch.Tensor | float]


class Meter:
    """Sums, maxima and durations by name.

    Every rank must use the same names, even without any sequences, because values are reduced as one vector;
    otherwise `reduced` is called with `agree`.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}
        self._maxima: dict[str, torch.Tensor | float] = {}
        self._durations: dict[str, float] = {}

    def add(self, values: Values) -> None:
        """Adds to sums over micro-batches and ranks."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def raise_to(self, values: Values) -> None:
        """Keeps the maxima over micro-batches and ranks."""
        for name, value in values.items():
            self._maxima[name] = max(float(value), float(self._maxima.get(name, 0.0)))

    def lengthen(self, values: Mapping[str, float]) -> None:
        """Adds to sums over micro-batches, of which the slowest rank's is reported."""
        for name, value in values.items():
            self._durations[name] = self._durations.get(name, 0.0) + value

    def reduced(self, counts: bool, device: torch.device, *, agree: bool = False) -> dict[str, float]:
        """Returns the values over all ranks, the same on each.

        Without `counts` this rank's sums are left out: a rank with the same data adds them. `agree` first
        exchanges the names: not every stage of a pipeline has losses.
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
        """Adds the names of all ranks, with values of 0."""
        names = list(self._sums), list(self._maxima), list(self._durations)
        names_by_rank: list[tuple[list[str], list[str], list[str]]] = [names] * dist.get_world_size()
        dist.all_gather_object(names_by_rank, names)
        for sums, maxima, durations in names_by_rank:
            self.add(dict.fromkeys(sums, 0.0))
            self.raise_to(dict.fromkeys(maxima, 0.0))
            self.lengthen(dict.fromkeys(durations, 0.0))
