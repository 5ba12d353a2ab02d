"""TensorBoard event files in the run folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.specs.sections.section import Section


class TensorBoardParams(Section):
    """Where the event files go."""

    folder: str = "tensorboard"
    """Folder inside the run's."""


class TensorBoard:
    """One scalar a metric; `tensorboard --logdir runs` compares runs."""

    Params = TensorBoardParams
    api_version = 1
    packages = ("torch", "tensorboard")

    def __init__(self, params: TensorBoardParams) -> None:
        self.params = params
        self._writer: Any = None

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        """Opens an event file; a resumed run adds one to the folder; TensorBoard reads both as one."""
        from torch.utils.tensorboard import SummaryWriter  # brings torch; not needed to check a spec

        self._writer = SummaryWriter(log_dir=str(Path(run_folder) / self.params.folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """One point for each metric."""
        for metric, value in metrics.items():
            self._writer.add_scalar(metric, value, step)

    def close(self) -> None:
        """Writes what is pending."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
