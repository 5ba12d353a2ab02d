"""The algorithms of one distribution: rlrun's own tests are not about those of other packages."""

from rlrun.plugins.registry import entries


def algorithms_of(distribution: str) -> list[str]:
    """Returns the names of the algorithms that a distribution announces."""
    return [entry.name for entry in entries("algorithms") if entry.distribution == distribution]


SHIPPED = algorithms_of("rlrun")
