"""slime's names for rewards, which rows of its datasets carry in their metadata."""

from typing import Any

from rlrun.plugins.registry import load

BOXED = "boxed_"
RENAMED = {"remote_rm": "remote"}


def reward_of_slime(name: str) -> tuple[str, dict[str, Any]]:
    """Our name and parameters for a reward that slime, or we, call `name`. PluginError for an unknown one.

    `boxed_f1` -> `("f1", {"boxed": True})`, `remote_rm` -> `("remote", {})`, `math` -> `("math", {})`
    """
    boxed = name.strip().startswith(BOXED)
    name = name.strip().removeprefix(BOXED)
    name = RENAMED.get(name, name)
    takes_boxed = "boxed" in load("rewards", name).Params.model_fields
    return name, {"boxed": True} if boxed and takes_boxed else {}
