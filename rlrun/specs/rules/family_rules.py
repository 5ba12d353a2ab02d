"""Refuses unknown model families, and settings that a family does not offer, by the table of families."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.models.config_defaults import EXPERT_COUNTS, with_family_defaults
from rlrun.models.config_json import architecture, with_vision_tower
from rlrun.models.families.table import TABLES, family_of, similar_families
from rlrun.models.family import Support
from rlrun.models.transformers_models import read_transformers_model
from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.reading import conflicts
from rlrun.specs.derived.speculation import mtp_layers
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.image_rules import image_findings
from rlrun.specs.rules.mtp_rules import mtp_findings
from rlrun.specs.sections.job import Spec

MODEL: KeyPath = ("model", "path")
DEGREES = ("tensor", "context", "pipeline", "expert")
"""The kinds of parallelism that not every family has."""


def family_findings(spec: Spec, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Checks the spec against the row of the model's family; `config` is the contents of `config.json`."""
    implementation, model_type = spec.model.implementation, config.get("model_type")
    if not isinstance(model_type, str):
        return  # reported when the architecture is read
    family = TABLES[implementation].get(model_type)
    if family is None:
        yield _unknown(implementation, model_type)
        return
    yield from _layouts(spec, model_type, family, config)
    yield from _speculation(spec, config)
    yield from conflicts(_job(spec, config), only_of_model=True)
    yield from image_findings(spec, config)
    yield from mtp_findings(spec, config)


def _job(spec: Spec, config: Mapping[str, Any]) -> Job:
    """Returns the job with its model; without one where another check reports the model's files."""
    with suppress(OSError, ValueError):
        if spec.model.implementation == "transformers":
            model = read_transformers_model(Path(spec.model.path))
            return Job(spec, model=model if model.stored_tensors else None)
        model = architecture(config)
        setting = spec.trainer.given("vision_tower")
        return Job(spec, model=with_vision_tower(model, setting) if model.vision else model)
    return Job(spec)


def _unknown(implementation: str, model_type: str) -> Finding:
    for other, families in TABLES.items():
        if model_type in families:
            message = f"model_type {model_type!r} is not one that the layers of {implementation} compute"
            cure, related = f'set model.implementation = "{other}"', (("model", "implementation"),)
            return Finding(MODEL, message, cure, related=related)
    names = similar_families(model_type)
    cure = f"did you mean {' or '.join(names)}? " if names else ""
    cure += "docs/families.md lists the families that are"
    return Finding(MODEL, f"model_type {model_type!r} is not supported", cure)


def _layouts(spec: Spec, model_type: str, family: Support, config: Mapping[str, Any]) -> Iterator[Finding]:
    has_experts = any(with_family_defaults(config).get(name) for name in EXPERT_COUNTS)
    for name in DEGREES:
        degree = getattr(spec.trainer.parallel, name)
        if degree == 1 or name in family.layouts or (name == "expert" and not has_experts):
            continue  # another rule refuses experts of a model that has none
        if spec.model.implementation == "transformers" and name in ("context", "pipeline"):
            continue  # refused for all of its families
        if name == "context" and family_of(with_family_defaults(config)).recurrent:
            continue  # refused by the table of what does not go together
        message = f"was not tried for {model_type}"
        if spec.model.implementation == "transformers":
            message += " with the layers of transformers"
        path: KeyPath = ("trainer", "parallel", name)
        yield Finding(path, message, _instead(family), found=degree, related=(MODEL,))


def _speculation(spec: Spec, config: Mapping[str, Any]) -> Iterator[Finding]:
    key: KeyPath = ("engine", "speculative", "algorithm")
    if spec.engine.speculative.algorithm == "mtp" and not mtp_layers(config):
        message = "the model has no layers for multi-token prediction (num_nextn_predict_layers)"
        cure = 'use "ngram", or an algorithm with a `draft_model`'
        yield Finding(key, message, cure, found="mtp", related=(MODEL,))


def _instead(family: Support) -> str:
    offered = ("fsdp", "replicate", *(name for name in DEGREES if name in family.layouts))
    return f"use {', '.join(offered[:-1])} or {offered[-1]} instead"
