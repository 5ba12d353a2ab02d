"""Stands in for pycosat, which the registry has only as C source.

reasoning-gym imports it for puzzles that no check uses.
"""


def solve(*_: object) -> None:
    """Raises, as every function here would."""
    raise NotImplementedError("pycosat is not packed for bare machines")


itersolve = solve
