"""Trackio (https://github.com/gradio-app/trackio): a local database, a Hugging Face Space, or a server."""

import math
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import model_validator

from rlrun.specs.sections.section import Section

NAME_FILE = "trackio-name.txt"


class TrackioParams(Section):
    """Where runs are shown."""

    project: str = "rlrun"
    """Project of the run; `trackio show --project` opens it."""
    group: str | None = None
    """Group of runs. None: none."""
    space: str | None = None
    """Hugging Face Space that metrics are sent to. None: they stay on this machine, in TRACKIO_DIR."""
    server: str | None = None
    """Address of a Trackio server that metrics are sent to; its token comes from TRACKIO_WRITE_TOKEN."""

    @model_validator(mode="after")
    def _one_place(self) -> "TrackioParams":
        if self.space is not None and self.server is not None:
            raise ValueError("metrics go to one place: set space or server, not both")
        return self


class Trackio:
    """One run; a resumed job goes on with it. The spec is sent without its secrets."""

    Params = TrackioParams
    api_version = 1
    packages = ("trackio",)

    def __init__(self, params: TrackioParams) -> None:
        self.params = params
        self._run: Any = None

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        """Begins the run, or goes on with the one whose name is in the run's folder."""
        import trackio  # the trackers extra; checking a spec does not need it

        file = Path(run_folder) / NAME_FILE
        own = file.read_text().strip() if file.is_file() else f"{name}-{secrets.token_hex(3)}"
        self._run = trackio.init(
            project=self.params.project,
            name=own,  # what Trackio knows a run by, so it must be this one's alone
            group=self.params.group,
            space_id=self.params.space,
            server_url=self.params.server,
            config=dict(spec),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        file.write_text(own + "\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics of one step; what is no finite number is left out, which no plot shows."""
        self._run.log({name: value for name, value in metrics.items() if math.isfinite(value)}, step=step)

    def close(self) -> None:
        """Sends what is pending."""
        if self._run is not None:
            self._run.finish()
            self._run = None
