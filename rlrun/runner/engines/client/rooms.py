"""The rooms in which prefill and decode servers of SGLang meet, one for each sample."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.specs.sections.engine import EngineRole

_ROOM_BITS = 62
"""SGLang's rooms are positive integers of 64 bits."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """Where the decode server of some samples gets the caches of their prompts.

    Example: `Rooms("10.0.0.4", 34001, (81, 17))`.
    """

    host: str
    """The prefill server's address."""
    port: int
    """The port on which it tells decode servers how to get caches."""
    numbers: Sequence[int]
    """The number of each sample's room."""

    @property
    def fields(self) -> dict[str, list[Any]]:
        """SGLang's fields of a /generate call, with an entry for each sample."""
        count = len(self.numbers)
        return {
            "bootstrap_host": [self.host] * count,
            "bootstrap_port": [self.port] * count,
            "bootstrap_room": list(self.numbers),
        }


@dataclass(frozen=True, slots=True)
class Serving:
    """What an engine does for a sample."""

    role: EngineRole = "regular"
    bootstrap_host: str = ""
    bootstrap_port: int = 0
    """The port of a prefill server's rooms."""

    def new_rooms(self, samples: int) -> Rooms:
        """Returns rooms of this prefill server for a call. Numbers are drawn, as SGLang's router does, since
        several clients may use the server.
        """
        numbers = [random.getrandbits(_ROOM_BITS) for _ in range(samples)]
        return Rooms(self.bootstrap_host, self.bootstrap_port, numbers)


REGULAR = Serving()
