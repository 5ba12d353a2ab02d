"""What a command leaves behind, for tests."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """Exit code and output."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]
