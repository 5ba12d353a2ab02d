"""Writes TensorBoard event files into the run's folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.specs.sections.section import Section


class TensorBoardParams(Section):
    """Where the event files are written."""

    folder: str = "tensorboard"
    """Name of a folder inside the run's folder."""


class TensorBoard:
    """Writes one scalar per metric; `tensorboard --logdir runs` compares runs."""

    Params = TensorBoardParams
    api_version = 1
    packages = ("torch", "tensorboard")

    def __init__(self, params: TensorBoardParams) -> None:
        self.params = params
        self._writer: Any = None

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        """Opens an event file. A resumed run adds a file to the folder, and TensorBoard reads all files as
        one run.
        """
        from torch.utils.tensorboard import SummaryWriter  # imports torch; checking a spec does not

        self._writer = SummaryWriter(log_dir=str(Path(run_folder) / self.params.folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes one point for each metric."""
        for metric, value in metrics.items():
            self._writer.add_scalar(metric, value, step)

    def close(self) -> None:
        """Writes pending points and closes the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
