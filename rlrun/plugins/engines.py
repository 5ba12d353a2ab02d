"""Addresses of a job's `[[engines]]`, for plugins that ask them: handed to reward processes in a variable."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

VARIABLE = "RLRUN_ENGINES"


@dataclass(frozen=True, slots=True)
class Address:
    """Where an engine listens."""

    url: str
    """Without a path: `http://127.0.0.1:30000`."""
    key: str | None = None
    """To be sent as `Authorization: Bearer KEY`; None: it asks for none."""

    @property
    def headers(self) -> dict[str, str]:
        """What is sent with every request."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}


def engine_addresses(name: str) -> list[Address]:
    """The engines called `name` in the spec, at least one. ValueError outside of a job that has them."""
    known = json.loads(os.environ.get(VARIABLE, "{}"))
    if not known.get(name):
        raise ValueError(f"no engines named {name!r} run here: they are those of [[engines]] of a job's spec")
    return [Address(**one) for one in known[name]]


def as_environment(engines: Mapping[str, Sequence[Address]]) -> dict[str, str]:
    """The variable that `engine_addresses` reads."""
    return {VARIABLE: json.dumps({name: [asdict(one) for one in group] for name, group in engines.items()})}
