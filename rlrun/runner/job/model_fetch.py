"""Finds or downloads the files of every model of a job, and checks them, before a launch claims its name."""

from dataclasses import fields

from rlrun.models.config_json import architecture
from rlrun.models.hub import Say, say_nothing
from rlrun.runner.cluster.start import Models
from rlrun.runner.contracts.errors import LaunchRefused
from rlrun.runner.host.model_files import ModelFiles, check_weights, fetch_files, fetch_model
from rlrun.runner.prompts.shared_vocabulary import check_same_tokens
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.job import Spec

_OF_STORAGE = ("dtype", "tied", "mtp")
"""What a model with the same layers may have differently in its files."""


def fetch_models(spec: Spec, say: Say = say_nothing) -> Models:
    """Returns the files of the policy, the teacher and the models of `[[engines]]`.

    Raises LaunchRefused if files are missing or damaged, or if models do not fit together. `say` shows a line
    before the hub is asked for a model.
    """
    policy = fetch_model(spec.model, say)
    try:
        check_weights(spec.model, policy.folder)
    except ValueError as error:
        raise LaunchRefused(str(error), Code.MODEL) from error
    teacher = None
    if spec.teacher is not None and spec.teacher.path is not None:
        teacher = fetch_files("teacher.path", spec.teacher.path, spec.teacher.revision, say=say)
    named_models = {
        section.name: fetch_files(f"engines[{number}].path", section.path, section.revision, say=say)
        if section.path
        else None
        for number, section in enumerate(spec.engines)
    }
    others = {
        role: fetch_files(f"{role}.path", section.path, section.revision, say=say)
        for role, section in (("reference", spec.reference), ("critic", spec.critic))
        if section.path is not None
    }
    _check_vocabularies(spec, policy, teacher, named_models)
    for role, files in others.items():
        check_same_tokens(policy, role, files)
        _check_architecture(policy, role, files)
    return Models(policy, teacher, others.get("reference"), others.get("critic"), named_models)


def _check_architecture(policy: ModelFiles, role: str, files: ModelFiles) -> None:
    """Raises LaunchRefused if a model has another architecture than the policy, whose layers compute it."""
    ours, theirs = architecture(policy.config()), architecture(files.config())
    names = [field.name for field in fields(ours) if field.name not in _OF_STORAGE]
    if different := [name for name in names if getattr(ours, name) != getattr(theirs, name)]:
        raise LaunchRefused(
            f"{role}.path: {files.folder} differs from the policy in {', '.join(different)}: choose a model "
            "with the policy's architecture",
            Code.MODEL,
        )


def _check_vocabularies(
    spec: Spec, policy: ModelFiles, teacher: ModelFiles | None, named_models: dict[str, ModelFiles | None]
) -> None:
    """Raises LaunchRefused if a model that scores the policy's tokens numbers them differently."""
    if teacher is not None and spec.teacher is not None and spec.teacher.tokenizer is None:
        check_same_tokens(policy, "teacher", teacher, ', or set teacher.tokenizer = "own"')
    names = [("teacher", name) for name in (spec.teacher.engines if spec.teacher else ())]
    names += [("reference", spec.reference.engine)] if spec.reference.engine else []
    for role, name in names:
        if (files := named_models[name]) is not None:
            check_same_tokens(policy, role, files)
