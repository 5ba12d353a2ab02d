"""The table of what does not go together: its keys exist, each pair is stated once, and all are reported."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tomli

from rlrun.models.architecture import Architecture
from rlrun.models.config_json import architecture
from rlrun.models.json_files import read_json
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.features import ADAPTERS_ALONE, SHARED_PREFIXES
from rlrun.specs.derived.conflicts.reading import conflicts, reasons_against
from rlrun.specs.derived.conflicts.row import Row
from rlrun.specs.derived.conflicts.table import TOPICS
from rlrun.specs.needs import Needs
from rlrun.specs.problems.findings import SpecError, dotted
from rlrun.specs.problems.suggestions import KeyIndex
from rlrun.specs.sections.job import Spec

BASE = Path(__file__).parents[2] / "base.toml"
MODEL = architecture(read_json(BASE.parent / "tiny" / "config.json"))
ROWS = [row for topic in TOPICS for row in topic.rows]
PLUGIN_KEYS = {
    "data.response_key",
    "data.rejected_key",
    "algorithm.correction",
    "algorithm.bootstrap_truncated",
    "algorithm.turn_rewards",
}
SECTIONS = set(Spec.model_fields)
KEYS_OF_NAMED_ENGINES = {"engine.adapter"}


def spec_of(**sections: Any) -> Spec:
    return Spec.model_validate({"model": {"path": "m"}, "data": {}} | sections)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.reason[:40])
def test_keys_exist_and_values_are_toml(row: Row) -> None:
    known = set(KeyIndex(Spec).paths()) | PLUGIN_KEYS | SECTIONS | KEYS_OF_NAMED_ENGINES
    for pair in row.pairs():
        for feature in pair:
            assert {feature.key, *feature.related} <= known
            if feature.off:
                tomli.loads(f"key = {feature.off}")


def test_each_pair_is_stated_once() -> None:
    pairs = Counter(frozenset((id(feature), id(other))) for row in ROWS for feature, other in row.pairs())
    assert max(pairs.values()) == 1
    names = Counter(
        frozenset(((feature.name, feature.is_absence), (other.name, other.is_absence)))
        for row in ROWS
        for feature, other in row.pairs()
    )
    assert [pair for pair, count in names.items() if count > 1] == []


def test_a_spec_without_features_has_no_findings() -> None:
    assert list(conflicts(Job(spec_of(), Needs()))) == []


def test_a_derived_value_is_not_blamed() -> None:
    spec = spec_of(trainer={"parallel": {"context": 2}})
    resolved = spec.with_sections(trainer=spec.trainer.resolved(share_prefixes=True))
    assert list(conflicts(Job(resolved, Needs()))) == []


def test_the_needs_of_an_algorithm_that_cannot_be_created_are_not_guessed() -> None:
    assert list(conflicts(Job(spec_of(teacher={"path": "m"}, rollout={"top_p": 0.9})))) == []


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ({"name": "judge", "path": "m", "type": "native", "urls": ["http://h:1"]}, ["engines.0.urls"]),
        ({"name": "judge", "path": "m", "type": "sglang", "router": "sglang-router"}, []),
    ],
)
def test_rows_about_engines_are_about_each_table_of_engines(section: dict[str, Any], keys: list[str]) -> None:
    found = list(conflicts(Job(spec_of(engines=[section]), Needs())))
    assert [dotted(finding.path) for finding in found] == keys


def test_rows_about_optimizers_are_also_about_the_critic() -> None:
    [finding] = conflicts(Job(spec_of(critic={"momentum": 0.9}), Needs(critic=True)))
    assert dotted(finding.path) == "critic.momentum"
    assert "critic.optimizer" in finding.message


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (replace(MODEL, sinks=True), "with attention sinks"),
        (replace(MODEL, joint_qk_norm=True), "with norms over all heads"),
        (MODEL, None),
    ],
    ids=["sinks", "joint norms", "plain"],
)
def test_rows_about_models_wait_for_the_model(model: Architecture, message: str | None) -> None:
    spec = spec_of(trainer={"parallel": {"tensor": 2, "async_tensor": True}}, cluster={"gpus_per_node": 2})
    assert list(conflicts(Job(spec), only_of_model=True)) == []
    found = [finding.message for finding in conflicts(Job(spec, model=model), only_of_model=True)]
    assert [message in text for text in found] == ([True] if message else [])


def test_several_conflicts_of_one_key_are_all_reported() -> None:
    overrides = ("trainer.compile=true", "trainer.mtp_loss=0.1", "trainer.activation_checkpointing=selective")
    with pytest.raises(SpecError) as error:
        load_checked_spec([BASE], overrides)
    messages = [problem.message for problem in error.value.problems if problem.key == "trainer.compile"]
    assert [message.partition(":")[0] for message in messages] == [
        'is not supported with trainer.activation_checkpointing = "selective"',
        "was not tried with trainer.mtp_loss",
    ]


def test_defaults_read_the_reasons() -> None:
    spec = spec_of(trainer={"parallel": {"context": 2}}, engine={"type": "external"})
    assert list(reasons_against(SHARED_PREFIXES, Job(spec))) == [
        "context-parallel ranks cut sequences without regard to their branches"
    ]
    assert list(reasons_against(ADAPTERS_ALONE, Job(spec))) == ["external engines only take whole models"]
