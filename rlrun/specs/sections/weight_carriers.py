"""The names of the carriers of new weights; rlrun.runner.weights.carriers has what each of them does."""

from typing import Literal

ChosenCarrier = Literal["tensor", "broadcast", "disk"]
"""The values of `engine.weight_sync`."""
Carrier = Literal["native"] | ChosenCarrier

ON_TRAINERS_HOST: frozenset[Carrier] = frozenset({"native", "tensor"})
"""Carriers that only reach engines on the host of trainer rank 0, unless their buckets are on shared GPUs."""
