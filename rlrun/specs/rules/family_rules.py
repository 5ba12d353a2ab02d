"""Refuses unknown model families, and settings that a family does not offer, by the table of families."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from rlrun.models.architecture import inexact_part
from rlrun.models.config_defaults import EXPERT_COUNTS, with_family_defaults
from rlrun.models.config_json import architecture, read_vision_tower, with_vision_tower
from rlrun.models.families.table import TABLES, similar_families
from rlrun.models.family import Support
from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.reading import conflicts
from rlrun.specs.derived.on_policy_target import rounds_as_target, untargeted_part
from rlrun.specs.derived.speculation import mtp_layers
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.rules.image_rules import image_findings
from rlrun.specs.rules.mtp_rules import mtp_findings
from rlrun.specs.rules.vision_rules import vision_findings
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
    yield from vision_findings(spec, config)
    yield from conflicts(_job(spec, config), only_of_model=True)
    yield from image_findings(spec, config)
    yield from mtp_findings(spec, config)
    yield from _exactness(spec, config)
    if implementation == "transformers":
        return  # adapters and precision are refused without a look at the family
    for path, value, is_offered in (
        (("trainer", "lora"), spec.trainer.lora, family.adapters),
        (("trainer", "precision"), spec.trainer.precision, family.precision),
        (("trainer", "share_prefixes"), spec.trainer.given("share_prefixes") or None, family.prefixes),
    ):
        if value is not None and not is_offered:
            yield Finding(path, f"is not supported for {model_type}", "remove it", related=(MODEL,))


def _job(spec: Spec, config: Mapping[str, Any]) -> Job:
    """Returns the job with its model; without one where another check reports its config.json."""
    model = tower = None
    with suppress(ValueError):
        model = architecture(config)
    with suppress(KeyError, TypeError):
        tower = read_vision_tower(config)
    setting = spec.trainer.given("vision_tower")
    is_loaded = tower is not None and (tower.loaded if setting is None else setting != "none")
    return Job(spec, None, model, is_loaded and spec.model.implementation != "transformers")


def _exactness(spec: Spec, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Checks that engines and trainer compute the model bit for bit alike."""
    if not spec.true_on_policy:
        return
    try:
        model = with_vision_tower(architecture(config), spec.trainer.given("vision_tower"))
    except ValueError:
        return  # reported when the architecture is read
    reason = untargeted_part(model) if rounds_as_target(spec) else inexact_part(model)
    if reason is not None:
        yield Finding(("true_on_policy",), reason, "remove it", found=True, related=(MODEL,))


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
        message, cure = f"is not supported for {model_type}", _instead(family)
        if spec.model.implementation == "transformers":
            message += " by the layers of transformers"
        elif name == "context":
            message = "the recurrent state of Gated DeltaNet passes through all tokens of a sequence in order"
            cure = "use 1"
        yield Finding(("trainer", "parallel", name), message, cure, found=degree, related=(MODEL,))


def _speculation(spec: Spec, config: Mapping[str, Any]) -> Iterator[Finding]:
    key: KeyPath = ("engine", "speculative", "algorithm")
    if spec.engine.speculative.algorithm == "mtp" and not mtp_layers(config):
        message = "the model has no layers for multi-token prediction (num_nextn_predict_layers)"
        cure = 'use "ngram", or an algorithm with a `draft_model`'
        yield Finding(key, message, cure, found="mtp", related=(MODEL,))


def _instead(family: Support) -> str:
    offered = ("fsdp", "replicate", *(name for name in DEGREES if name in family.layouts))
    return f"use {', '.join(offered[:-1])} or {offered[-1]} instead"
