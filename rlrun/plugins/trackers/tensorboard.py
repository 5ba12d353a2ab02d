"""Writes TensorBoard event files into the run's folder."""

import time
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
    packages = ("tensorboard",)

    def __init__(self, params: TensorBoardParams) -> None:
        self.params = params
        self._writer: Any = None

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        """Opens an event file. A resumed run adds a file to the folder, and TensorBoard reads all files as
        one run.
        """
        # checking a spec needs no import of a second; torch's writer, around this one, takes four
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(Path(run_folder) / self.params.folder))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes one point for each metric."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=metric, simple_value=value) for metric, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Writes pending points and closes the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
