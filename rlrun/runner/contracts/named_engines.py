"""The models of `[[engines]]` as rollout plugins ask them."""

import asyncio
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rlrun.plugins.engines import Address, ServedEngine


@dataclass(frozen=True, slots=True)
class NamedEngines:
    """The addresses of a job's `[[engines]]`, by their names."""

    addresses: Mapping[str, Sequence[Address]] = field(default_factory=dict)
    one_at_a_time: bool = False
    """Executions ask a model one after the other, since the rounding of an answer depends on the requests
    that an engine computes together (`deterministic`)."""
    _turns: defaultdict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    def engine(self, name: str, seed: int) -> ServedEngine:
        """Returns the client of one execution, which always asks the same engine, so that this has the
        conversation in its cache. Raises ValueError if the job has no engines of this name.
        """
        if not self.addresses.get(name):
            names = ", ".join(self.addresses) or "none"
            raise ValueError(f'no table of [[engines]] is named "{name}"; those of this job: {names}')
        group = self.addresses[name]
        turn = self._turns[name] if self.one_at_a_time else None
        return ServedEngine(group[seed % len(group)], seed, turn)
