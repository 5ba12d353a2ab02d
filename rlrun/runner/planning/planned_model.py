"""Models of a plan, by their config.json alone."""

from pathlib import Path

from rlrun.models.architecture import Architecture
from rlrun.models.config_json import read_architecture
from rlrun.models.hub import download
from rlrun.models.transformers_models import read_model
from rlrun.specs.derived.engine_layout import starts_with_job
from rlrun.specs.sections.job import Spec
from rlrun.specs.sections.model import ModelSpec


def planned_architecture(spec: ModelSpec) -> Architecture:
    """The model's architecture, from its folder or the hub's config.json alone.

    ValueError, with the reason, where neither is at hand or the family is not supported.
    """
    folder = Path(spec.path)
    if folder.is_dir():
        return read_model(folder, spec.implementation)
    if spec.implementation == "transformers":
        raise ValueError(f"{spec.path} is sized from its weights' headers: download it, and give its folder")
    try:
        folder = download(spec.path, ["config.json"], spec.revision)
    except ValueError as error:
        raise ValueError(f"the hub does not give {spec.path}'s config.json: {error}") from None
    return read_architecture(folder)


def other_architectures(spec: Spec) -> dict[str, Architecture]:
    """Those of `[[engines]]` that the job starts, by name. ValueError as for the policy's."""
    return {
        section.name: planned_architecture(ModelSpec(path=section.path, revision=section.revision))
        for section in spec.engines
        if starts_with_job(section) and section.path is not None
    }
