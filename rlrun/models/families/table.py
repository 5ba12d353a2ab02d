"""The list of all model families. A new one is a module of this folder, and an entry of `_MODULES`."""

from collections.abc import Mapping
from difflib import get_close_matches

from rlrun.models.families import glm, kimi, llama, mimo, muse, qwen, qwen_vl
from rlrun.models.families.by_transformers import TRANSFORMERS
from rlrun.models.families.deepseek import family as deepseek
from rlrun.models.families.dsa import family as dsa
from rlrun.models.families.gpt_oss import family as gpt_oss
from rlrun.models.families.minimax import family as minimax
from rlrun.models.families.qwen_next import family as qwen_next
from rlrun.models.family import Config, Family, Support

_MODULES = (deepseek, dsa, glm, gpt_oss, kimi, llama, mimo, minimax, muse, qwen, qwen_next, qwen_vl)

FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in sorted(
        (family for module in _MODULES for family in module.FAMILIES), key=lambda family: family.model_type
    )
}
"""Every family by its `model_type`, except those that only transformers' layers compute."""
NATIVE: Mapping[str, Support] = {
    name: family.support for name, family in FAMILIES.items() if family.support is not None
}
"""Families whose layers are the trainer's own (`model.implementation = "torchtitan"`)."""
TABLES: Mapping[str, Mapping[str, Support]] = {"torchtitan": NATIVE, "transformers": TRANSFORMERS}
"""What is offered for the families of each `model.implementation`; docs/families.md shows it, and `rlrun
validate`, `plan` and `launch` refuse everything else."""
WITH_TOWER = tuple(name for name, family in FAMILIES.items() if family.tower is not None)
"""`model_type`s of checkpoints whose vision tower is computed."""


def family_named(model_type: object) -> Family:
    """Returns a family by its `model_type`; one about which nothing is known if it is not in the list."""
    name = str(model_type)
    return FAMILIES.get(name) or Family(model_type=name)


def family_of(config: Config) -> Family:
    """Returns the family of a `config.json`."""
    return family_named(config.get("model_type"))


def similar_families(model_type: str) -> list[str]:
    """Returns the supported families whose names are nearest to an unknown one; empty if none is near."""
    return get_close_matches(model_type, sorted({*NATIVE, *TRANSFORMERS}), n=3)


def why_no_mtp(model_type: str, count: int) -> str | None:
    """Returns why the trainer cannot train the MTP layer of a family with `count` of them; None if it can."""
    if family_named(model_type).mtp is None:
        families = ", ".join(name for name, family in FAMILIES.items() if family.mtp is not None)
        return (
            f"MTP layers are trained for {families}; those of {model_type} were not compared with a reference"
        )
    if count != 1:
        return f"num_nextn_predict_layers in config.json has to be 1, and is {count}"
    return None
