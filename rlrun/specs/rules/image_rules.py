"""Refuses data with images where the model, or the way of making prompts, has no use for them."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.models.config_json import read_vision_tower
from rlrun.models.families.table import WITH_TOWER
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.job import Spec

KEY = "images_key"


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
    if params.get(KEY) is not None:
        yield (*table, KEY)
    sources = params.get("sources")
    for number, source in enumerate(sources if isinstance(sources, list) else ()):
        if isinstance(source, Mapping) and source.get(KEY) is not None:
            yield (*table, "sources", number, KEY)


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
