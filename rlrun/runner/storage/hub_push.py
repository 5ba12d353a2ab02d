"""Pushes a run's final model to the Hugging Face hub, with a model card."""

import logging
from collections.abc import Callable

from rlrun.converters.convert.hub import upload
from rlrun.models.foreign_files import read_bytes
from rlrun.runner.host.atomic_files import write_text
from rlrun.runner.records.metrics_file import read_metrics
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.storage.model_card import CARD, model_card
from rlrun.specs.paths import display_path
from rlrun.specs.sections.job import Spec

_SPEC_BYTES = 1 << 20

logger = logging.getLogger(__name__)


def push_model(spec: Spec, folder: RunFolder, say: Callable[[str], None]) -> None:
    """Writes the card beside the model, and uploads both to `checkpoint.push` in one commit.

    A repository that does not exist is created as a private one. A failure is a warning: the run is done and
    its model is on disk.
    """
    repository = spec.checkpoint.push
    assert repository is not None
    text = read_bytes(folder.spec, _SPEC_BYTES).decode(errors="replace") if folder.spec.exists() else ""
    lines = read_metrics(folder.metrics)
    adapter = (folder.model / "adapter_config.json").exists()
    write_text(folder.model / CARD, model_card(spec, text, lines, adapter=adapter))
    steps = int(lines[-1]["step"]) if lines else 0
    message = f"{spec.name}: {steps} steps of {spec.algorithm.type}"
    try:
        say(f"the model is at {upload(folder.model, repository, message)}")
    except ValueError as error:
        command = f"hf upload {repository} {display_path(folder.model)}"
        logger.warning("%s. To upload it later: %s", error, command)
