"""Pushes a run's final model to the Hugging Face hub, with a model card."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.models.foreign_files import read_bytes
from rlrun.models.hub import first_line
from rlrun.runner.host.atomic_files import write_text
from rlrun.runner.records.metrics_file import read_metrics
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.storage.model_card import CARD, model_card
from rlrun.specs.paths import display_path
from rlrun.specs.sections.job import Spec

if TYPE_CHECKING:
    from huggingface_hub import HfApi

_SPEC_BYTES = 1 << 20

logger = logging.getLogger(__name__)


def push_model(spec: Spec, folder: RunFolder, say: Callable[[str], None], api: "HfApi | None" = None) -> None:
    """Writes the card beside the model, and uploads both to `checkpoint.push` in one commit.

    A repository that does not exist is created as a private one. A failure is a warning: the run is done and
    its model is on disk.
    """
    from huggingface_hub import HfApi

    repository = spec.checkpoint.push
    assert repository is not None
    text = read_bytes(folder.spec, _SPEC_BYTES).decode(errors="replace") if folder.spec.exists() else ""
    lines = read_metrics(folder.metrics)
    adapter = (folder.model / "adapter_config.json").exists()
    write_text(folder.model / CARD, model_card(spec, text, lines, adapter=adapter))
    api = api or HfApi(library_name="rlrun")
    steps = int(lines[-1]["step"]) if lines else 0
    try:
        api.create_repo(repository, private=True, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repository,
            folder_path=folder.model,
            commit_message=f"{spec.name}: {steps} steps of {spec.algorithm.type}",
        )
    except Exception as error:  # a boundary: versions of the library use different HTTP libraries
        logger.warning("%s", _not_pushed(repository, folder.model, error))
        return
    say(f"the model is at {commit.commit_url}")


def _not_pushed(repository: str, model: Path, error: Exception) -> str:
    command = f"hf upload {repository} {display_path(model)}"
    return f"the model was not pushed to {repository}: {first_line(error)}. It is complete on disk: {command}"
