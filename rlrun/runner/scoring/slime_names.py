"""Translates slime's names of rewards, which the rows of its datasets have in their metadata."""

from typing import Any

from rlrun.plugins.registry import load

BOXED = "boxed_"
RENAMED = {"remote_rm": "remote"}


def reward_of_slime(name: str) -> tuple[str, dict[str, Any]]:
    """Returns rlrun's name and parameters of a reward, given slime's or rlrun's name. Raises PluginError if
    unknown.

    `boxed_f1` -> `("f1", {"boxed": True})`, `remote_rm` -> `("remote", {})`, `math` -> `("math", {})`
    """
    boxed = name.strip().startswith(BOXED)
    name = name.strip().removeprefix(BOXED)
    name = RENAMED.get(name, name)
    takes_boxed = "boxed" in load("rewards", name).Params.model_fields
    return name, {"boxed": True} if boxed and takes_boxed else {}
