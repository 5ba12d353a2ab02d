"""Keys whose default follows from the rest cannot be read before they are resolved."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.derived.resolution import open_keys
from rlrun.specs.problems.suggestions import all_models
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.section import Section, is_derived
from tests.resolved_specs import resolved

BASE = Path(__file__).parents[1] / "base.toml"
DERIVED = [
    (model, name)
    for model in sorted(all_models(Spec), key=lambda model: model.__name__)
    for name, field in model.model_fields.items()
    if is_derived(field)
]
"""Every derived key of every section."""
FULL: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {},
    "eval": {"datasets": [{"name": "held", "type": "jsonl"}]},
    "engines": [{"name": "judge", "path": "j", "type": "native"}],
}
"""A document with every section that has derived keys."""


def sections(section: Section) -> Iterator[Section]:
    yield section
    for value in section.__dict__.values():
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Section):
                yield from sections(inner)


@pytest.mark.parametrize(("model", "name"), DERIVED, ids=lambda value: getattr(value, "__name__", value))
def test_a_derived_key_cannot_be_read_before_it_is_resolved(model: type[Section], name: str) -> None:
    required = {name: "jsonl" for name, field in model.model_fields.items() if field.is_required()}
    section = model.model_validate(required)
    with pytest.raises(AssertionError, match=f"`{name}` of {model.__name__} was read before it was resolved"):
        getattr(section, name, None)
    assert section.given(name) is None
    assert name not in section.model_dump()


def test_every_derived_key_has_a_value_in_what_the_processes_of_a_job_get() -> None:
    """A new derived key that `resolve` forgets fails here, in whichever section it is."""
    written = Spec.model_validate(FULL)
    missing = {key.rpartition(".")[2] for key, has_value in open_keys(written) if not has_value}
    assert missing == {name for _, name in DERIVED}
    spec = resolved(written)
    assert all(has_value for _, has_value in open_keys(spec))
    assert {type(section) for section in sections(spec)} >= {model for model, _ in DERIVED}
    received = Spec.model_validate_json(spec.model_dump_json())  # as ranks do
    assert not list(open_keys(received))
    assert received.model_dump() == spec.model_dump()


SAME_AS_WRITTEN = {
    "nothing special": [],
    "asynchronous": ["rollout.mode=async", "cluster.placement=disaggregated", "trainer.optimizer_steps=2"],
    "partial": ["rollout.partial=true", "rollout.oversample=48"],
    "cut vocabulary": ["rollout.top_p=0.9", "rollout.top_k=50"],
    "GPUs": ["cluster.gpus_per_node=1", "engine.type=sglang"],
    "GPUs apart": ["cluster.gpus_per_node=2", "cluster.placement=disaggregated", "engine.type=sglang"],
    "adapters": ["trainer.lora.rank=8"],
    "two nodes": ["cluster.nodes=2", "cluster.address=host:1", "engine.weight_delta=elements"],
}


@pytest.mark.parametrize("case", SAME_AS_WRITTEN)
def test_writing_a_default_out_changes_nothing(case: str) -> None:
    """As what a rank gets, and through the rules, which must accept every default that is written out."""
    spec = resolved(load_checked_spec([BASE], SAME_AS_WRITTEN[case]).spec)
    again = resolved(Spec.model_validate_json(spec.model_dump_json()))
    assert again.model_dump() == spec.model_dump()


def test_a_resolved_spec_is_resolved_again_after_another_key_has_changed() -> None:
    spec = resolved({"model": {"path": "m"}, "data": {}, "rollout": {"oversample": 64}})
    stale = spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"partial": True})})
    assert (spec.trainer.old_log_probs, resolved(stale).trainer.old_log_probs) == ("trainer", "rollout")
    assert resolved(stale).rollout.oversample == 64


def test_a_spec_for_evaluations_falls_back_to_the_rollout() -> None:
    datasets = [{"name": "a", "type": "jsonl"}, {"name": "b", "type": "jsonl", "top_p": 1.0}]
    evaluation = {"temperature": 0.0, "datasets": datasets}
    spec = resolved(FULL | {"rollout": {"temperature": 0.5, "top_p": 0.8}, "eval": evaluation})
    assert [(one.temperature, one.top_p) for one in spec.eval.datasets] == [(0.0, 0.8), (0.0, 1.0)]
