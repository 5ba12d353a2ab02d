"""Names of other trainers lead to keys that exist."""

import pytest

from rlrun.plugins.registry import load
from rlrun.specs.problems.other_trainers import counterpart, rows
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.suggestions import OTHER_NAMES, KeyIndex
from rlrun.specs.sections.job import Spec

INDEX = KeyIndex(Spec)
INDEX.add(load("algorithms", "ppo").Params, "algorithm.")
INDEX.add(load("data", "jsonl").Params, "data.")
INDEX.add(load("algorithms", "grpo").Params, "algorithm.")
INDEX.add(load("rollouts", "multi_turn_tools").Params, "rollout.function.")
KEYS = {*INDEX.paths(), "engine.sglang.mem_fraction_static", "engine.sglang"}


@pytest.mark.parametrize(("name", "key"), sorted(OTHER_NAMES.items()))
def test_other_trainers_names_lead_to_keys(name: str, key: str) -> None:
    assert key in KEYS, f"{name} -> {key}"


@pytest.mark.parametrize(
    "found",
    [
        pytest.param(found, id=f"{trainer} {name}")
        for trainer, table in rows().items()
        for row in table
        for name in row.theirs.replace("=", " ").split("`")[1::2]
        if (found := counterpart(name.strip("[] "))) and found.key
    ],
)
def test_the_table_of_other_trainers_leads_to_keys(found) -> None:
    assert found.key in KEYS, found


@pytest.mark.parametrize(
    ("path", "ours"),
    [
        (("data", "train_batch_size"), "`rollout.batch_size`"),
        (("actor_rollout_ref", "rollout", "n"), "`rollout.samples_per_prompt`"),
        (("rollout", "n"), "`rollout.samples_per_prompt`"),
        (("trainer", "beta"), "`algorithm.kl.in_loss.coef`"),
        (("algorithm", "kl_loss_coef"), "`algorithm.kl.in_loss.coef`"),
        (("model", "name"), "`model.path`"),
        (("rollout", "name"), "`engine.type`"),
        (("data", "name"), None),
        (("rollout", "lr"), None),
        (("trainer", "epoch"), None),
    ],
)
def test_a_setting_of_another_trainer_is_told_by_the_end_of_its_path(path: KeyPath, ours: str | None) -> None:
    found = INDEX.counterpart(path)
    assert (found and found.ours) == ours
