"""Finds or downloads the files of every model of a job, and checks them, before a launch claims its name."""

from rlrun.models.hub import Say, say_nothing
from rlrun.runner.cluster.start import Models
from rlrun.runner.contracts.errors import LaunchRefused
from rlrun.runner.host.model_files import ModelFiles, check_weights, fetch_files, fetch_model
from rlrun.runner.prompts.shared_vocabulary import check_same_tokens
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.job import Spec


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
    _check_vocabularies(spec, policy, teacher, named_models)
    return Models(policy, teacher, named_models)


def _check_vocabularies(
    spec: Spec, policy: ModelFiles, teacher: ModelFiles | None, named_models: dict[str, ModelFiles | None]
) -> None:
    """Raises LaunchRefused if a model that scores the policy's tokens numbers them differently."""
    scoring_models = [("teacher", teacher)]
    for role, section in (("teacher", spec.teacher), ("reference", spec.reference)):
        if section is not None and section.engine:
            scoring_models.append((role, named_models[section.engine]))
    for role, files in scoring_models:
        if files is not None:
            check_same_tokens(policy, role, files)
