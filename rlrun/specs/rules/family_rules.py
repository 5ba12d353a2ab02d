"""Refuses unknown model families, and settings that a family does not offer, by the table of families."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rlrun.models.config_defaults import EXPERT_COUNTS, with_family_defaults
from rlrun.models.config_json import architecture, read_vision_tower, with_vision_tower
from rlrun.models.families.table import TABLES, WITH_TOWER, similar_families, why_no_mtp
from rlrun.models.family import Support
from rlrun.models.transformers_models import read_transformers_model
from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.reading import conflicts
from rlrun.specs.derived.speculation import mtp_layers
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.job import Spec

MODEL: KeyPath = ("model", "path")
DEGREES = ("tensor", "context", "pipeline", "expert")
"""The kinds of parallelism that not every family has."""
_IMAGES_KEY = "images_key"
_MTP_LOSS: KeyPath = ("trainer", "mtp_loss")


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


def image_findings(spec: Spec, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Checks every dataset that has images against the contents of the model's `config.json`."""
    datasets: list[tuple[KeyPath, DataSpec]] = [(("data",), spec.data)]
    datasets += [(("eval", "datasets", number), data) for number, data in enumerate(spec.eval.datasets)]
    for table, data in datasets:
        for path in _paths_of_keys(table, data.params):
            if reason := _unread(spec, config):
                yield Finding(path, *reason, related=(("model", "path"), ("trainer", "vision_tower")))
            elif not data.apply_chat_template:
                message = (
                    "images are put into the prompt by the chat template, which apply_chat_template turns off"
                )
                cure = "set apply_chat_template = true"
                yield Finding(path, message, cure, related=((*table, "apply_chat_template"),))


def _paths_of_keys(table: KeyPath, params: Mapping[str, Any]) -> Iterator[KeyPath]:
    """Yields the positions of the keys that say where images are, also in the sources of a mixture."""
    if params.get(_IMAGES_KEY) is not None:
        yield (*table, _IMAGES_KEY)
    sources = params.get("sources")
    for number, source in enumerate(sources if isinstance(sources, list) else ()):
        if isinstance(source, Mapping) and source.get(_IMAGES_KEY) is not None:
            yield (*table, "sources", number, _IMAGES_KEY)


def _unread(spec: Spec, config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Returns why the trained model does not read images, and the cure; None if it does."""
    families = ", ".join(WITH_TOWER)
    try:
        tower = read_vision_tower(config)
    except (KeyError, TypeError):
        return None  # reported when the architecture is read
    if tower is None:
        message = f"the model's family, {config.get('model_type')}, reads no images in rlrun"
        return message, f"remove it, or choose a model of {families}"
    if spec.model.implementation == "transformers":
        return "the layers of transformers compute text only", 'set model.implementation = "torchtitan"'
    setting = spec.trainer.given("vision_tower")
    if setting == "none" or (setting is None and not tower.loaded):
        message = "the vision tower is not loaded"
        return message, 'set trainer.vision_tower = "frozen" or "trained"'
    return None


def mtp_findings(spec: Spec, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Checks that a model has an MTP layer that the trainer computes; `config` is that of `config.json`."""
    if not spec.trainer.mtp_loss or spec.model.implementation == "transformers":
        return
    count = with_family_defaults(config).get("num_nextn_predict_layers")
    reason = why_no_mtp(str(config.get("model_type")), count if isinstance(count, int) else 0)
    if reason is not None:
        yield Finding(
            _MTP_LOSS, reason, "remove it", found=spec.trainer.mtp_loss, related=(("model", "path"),)
        )
