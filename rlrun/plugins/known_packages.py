"""Plugins that rlrun's repository keeps in separate packages, under `packages/`.

A spec may name such a plugin where its package is not installed. The error then says how to install it.
"""

from collections.abc import Mapping

PACKAGES: Mapping[tuple[str, str], str] = {("rewards", "ifbench"): "rlrun-ifbench"}
"""The package that declares a plugin, by kind and name."""


def names_in_packages(kind: str) -> list[str]:
    """Returns the names of a kind that these packages declare, whether they are installed or not."""
    return [name for package_kind, name in PACKAGES if package_kind == kind]


def how_to_install(kind: str, name: str) -> str | None:
    """Returns which package has a plugin and how to install it; None for a plugin of no known package."""
    package = PACKAGES.get((kind, name))
    if package is None:
        return None
    return (
        f"it is in the package {package}, which is not installed; "
        f"in a clone of rlrun's repository: pip install ./packages/{package}"
    )
