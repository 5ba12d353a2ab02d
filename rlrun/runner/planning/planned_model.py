"""Reads the architectures of a plan's models from their config.json, without their weights, and resolves the
keys of a spec that follow from them.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from rlrun.converters.families.stored_adapter import StoredAdapter, read_stored_adapter
from rlrun.models.architecture import Architecture
from rlrun.models.config_json import read_architecture, read_config
from rlrun.models.hub import download
from rlrun.models.transformers_models import read_model
from rlrun.plugins.validation import needs_of
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.planning.plan import POLICY_NAME
from rlrun.runner.planning.served_weights import DraftModel, draft_model
from rlrun.specs.derived.engine_layout import starts_with_job
from rlrun.specs.derived.policy_model import read_policy
from rlrun.specs.derived.resolution import Resolved, resolve
from rlrun.specs.derived.speculation import has_draft_weights
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.model import ModelSpec


def planned_architecture(spec: ModelSpec) -> Architecture:
    """Returns a model's architecture, read from its folder or from the config.json on the hub.

    Raises ValueError, with the reason, if neither is available or the family is not supported.
    """
    folder = Path(spec.path)
    if folder.is_dir():
        return read_model(folder, spec.implementation)
    if spec.implementation == "transformers":
        raise ValueError(
            f"{spec.path} is not a folder, and a transformers model is sized from the headers of its "
            "weights: download it and give its folder as model.path"
        )
    return read_architecture(_config_folder(spec))


def _config_folder(spec: ModelSpec) -> Path:
    """Returns a folder with a model's config.json: its own, or one that is downloaded from the hub."""
    if (folder := Path(spec.path)).is_dir():
        return folder
    try:
        return download(spec.path, ["config.json"], spec.revision)
    except ValueError as error:
        raise ValueError(f"the config.json of {spec.path} could not be downloaded: {error}") from None


def named_engine_architectures(spec: Spec) -> dict[str, Architecture]:
    """Returns the architecture of every model in `[[engines]]` that the job starts, by the engine's name.

    Raises ValueError as `planned_architecture` does.
    """
    return {
        section.name: planned_architecture(ModelSpec(path=section.path, revision=section.revision))
        for section in spec.engines
        if starts_with_job(section) and section.path is not None
    }


def named_engine_adapters(spec: Spec) -> dict[str, StoredAdapter]:
    """Returns the adapter of every model in `[[engines]]` that has one, by the engine's name.

    Raises ValueError, with the reason, if one cannot be read.
    """
    return {
        section.name: read_stored_adapter(Path(section.adapter))
        for section in spec.engines
        if section.adapter is not None and section.type != "external"
    }


def draft_models(
    spec: Spec, policy: Architecture, named: Mapping[str, Architecture]
) -> dict[str, DraftModel]:
    """Returns the draft model of each kind of SGLang servers that has one, by the engine's name. `named`: the
    models of `[[engines]]`.

    Raises ValueError, with the reason, if a config.json cannot be used.
    """
    servers = [(POLICY_NAME, spec.engine, spec.model, policy)]
    servers += [
        (section.name, section, ModelSpec(path=section.path, revision=section.revision), named[section.name])
        for section in spec.engines
        if section.name in named and section.path is not None
    ]
    drafts = {}
    for name, section, model, served in servers:
        if has_draft_weights(section):
            config = read_config(_config_folder(model))
            if (draft := draft_model(section.speculative, served, config)) is not None:
                drafts[name] = draft
    return drafts


def resolve_for_job(spec: Spec, model: ModelFiles | None) -> Resolved:
    """Returns the spec that a job runs with; `model` is None where a server elsewhere has the model.

    Raises ValueError, with the reason, if the config.json of a model cannot be used.
    """
    needs = needs_of(spec)
    if model is None:
        return resolve(spec, needs, [])
    return resolve(spec, needs, [read_policy(model.folder, spec, needs), *_teachers(spec)])


def resolve_for_plan(spec: Spec, policy: Architecture | None) -> Resolved:
    """Returns the spec that a job would run with, as far as its models are known.

    `policy`: with the parts that the trainer computes; None if its config.json is not known.
    """
    models = [] if policy is None else [policy]
    with suppress(OSError, ValueError):  # the plan says why the teacher is not known
        models += _teachers(spec) if models else []
    return resolve(spec, needs_of(spec), models)


def resolve_on_this_host(spec: Spec) -> Resolved:
    """Returns the spec that a job would run with, as far as its models are in folders on this host."""
    folder, teacher, models = Path(spec.model.path), spec.teacher and spec.teacher.path, []
    with suppress(OSError, ValueError):  # the checks of the files report a model that cannot be read
        if folder.is_dir():
            models.append(read_policy(folder, spec, needs_of(spec)))
            models += _teachers(spec) if teacher and Path(teacher).is_dir() else []
    return resolve(spec, needs_of(spec), models)


def _teachers(spec: Spec) -> list[Architecture]:
    """Returns the teacher if ranks compute one. Raises ValueError as `planned_architecture` does."""
    teacher = spec.teacher
    if teacher is None or teacher.path is None:
        return []
    return [planned_architecture(ModelSpec(path=teacher.path, revision=teacher.revision))]
