"""Calls a trainer rank's methods in its process; TrainerRank, which runs there, is their only declaration.

    lambda rank: rank.write_weights(7) ──▶ "write_weights", (7,) ──▶ TrainerActor.run ──▶ TrainerRank

The driver must not import TrainerRank, because that imports torch. It calls the lambda with a stand-in that
returns the name and the arguments, while mypy checks them and the answer against the class.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

if TYPE_CHECKING:
    from rlrun.runner.trainer.roles.rank import TrainerRank

Answer = TypeVar("Answer")
Shared = TypeVar("Shared")


class RemoteRank(Protocol):
    """One trainer rank in a process of its own (rlrun.runner.cluster.ray_process.Process)."""

    def run(self, method: str, *args: Any, deadline: float) -> Awaitable[tuple[Any, float]]:
        """Runs a method of the rank; returns its answer and the seconds that it took. ProcessFailure when the
        rank dies or raises.
        """

    def share(self, value: Shared) -> Shared:
        """Sends a large argument ahead once; returns what the calls of several ranks pass instead of it."""


def run_on(
    rank: RemoteRank, call: "Callable[[TrainerRank], Answer]", deadline: float
) -> Awaitable[tuple[Answer, float]]:
    """Makes the one call that `call` makes, in the rank's process; returns its answer and its seconds.

    Example: `update, seconds = await run_on(rank, lambda rank: rank.write_weights(7), 60.0)`
    """
    method, args = cast("tuple[str, tuple[Any, ...]]", call(cast("TrainerRank", _Recorder())))
    return rank.run(method, *args, deadline=deadline)


class _Recorder:
    """Stands in for a TrainerRank: a method returns its name and its arguments."""

    def __getattr__(self, method: str) -> Callable[..., tuple[str, tuple[Any, ...]]]:
        return lambda *args: (method, args)
