"""Metrics of an optimizer step, reduced over micro-batches and ranks.

Every name is either declared in `rlrun.runner.contracts.update_metrics` or an algorithm's.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist

from rlrun.runner.contracts.update_metrics import COMBINATIONS, algorithm_metrics
from rlrun.runner.trainer.transfers import stack_scalars

Values = Mapping[str, torch.Tensor | float]


class Meter:
    """Sums and maxima by name, which stay on the device until all metrics of a step are read at once.

    Every rank must use the same names, even without any sequences, because values are reduced as one vector.
    """

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor | float] = {}
        self._maxima: dict[str, list[torch.Tensor | float]] = {}
        self._of_algorithm: set[str] = set()

    def add(self, values: Values) -> None:
        """Adds to sums over micro-batches and ranks."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def add_token_means(self, metrics: Mapping[str, torch.Tensor], weights: torch.Tensor) -> None:
        """Adds an algorithm's token values, times the weights of the tokens, as `train/<name>`.

        Raises ValueError if a name is one of rlrun's own metrics.
        """
        named = algorithm_metrics({name: (value * weights).sum() for name, value in metrics.items()})
        self._of_algorithm |= named.keys()
        self.add(named)

    def raise_to(self, values: Values) -> None:
        """Keeps the maxima over micro-batches and ranks; NaN counts as infinite."""
        for name, value in values.items():
            self._maxima.setdefault(name, [0.0]).append(value)

    def check_declared(self, metrics: Values) -> None:
        """Fails if rlrun measured something of which it is not declared how steps combine it."""
        undeclared = metrics.keys() - COMBINATIONS.keys() - self._of_algorithm
        assert not undeclared, f"declare in update_metrics how to combine {sorted(undeclared)}"

    def reduced(self, counts: bool, device: torch.device) -> dict[str, torch.Tensor]:
        """Returns the values over all ranks, the same on each, as float64 scalars on the device.

        Without `counts` this rank's sums are left out: a rank with the same data adds them.
        """
        sums, maxima = sorted(self._sums), sorted(self._maxima)
        total = stack_scalars([self._sums[name] for name in sums], device)
        peak = stack_scalars([stack_scalars(self._maxima[name], device).max() for name in maxima], device)
        # gloo's maximum of a number and NaN is the number if NaN comes from a later rank
        peak = peak.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=-torch.inf)
        if dist.is_initialized() and dist.get_world_size() > 1:
            if not counts:
                total.zero_()
            dist.all_reduce(total, dist.ReduceOp.SUM)
            dist.all_reduce(peak, dist.ReduceOp.MAX)
        return dict(zip(sums, total.unbind(), strict=True)) | dict(zip(maxima, peak.unbind(), strict=True))


def read(metrics: Values, device: torch.device) -> dict[str, float]:
    """Copies metrics to the host, all at once: the only wait for the device in an optimizer step."""
    return dict(zip(metrics, stack_scalars(metrics.values(), device).tolist(), strict=True))
