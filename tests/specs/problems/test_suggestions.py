"""Names of other trainers lead to keys that exist."""

import pytest

from rlrun.plugins.registry import load
from rlrun.specs.problems.suggestions import OTHER_NAMES, KeyIndex
from rlrun.specs.sections.job import Spec


@pytest.mark.parametrize(("name", "key"), sorted(OTHER_NAMES.items()))
def test_other_trainers_names_lead_to_keys(name: str, key: str) -> None:
    index = KeyIndex(Spec)
    index.add(load("algorithms", "ppo").Params, "algorithm.")
    index.add(load("data", "jsonl").Params, "data.")
    known = {*index.paths(), "engine.sglang.mem_fraction_static"}
    assert key in known, f"{name} -> {key}"
