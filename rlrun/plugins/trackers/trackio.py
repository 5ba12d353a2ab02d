"""Sends metrics to Trackio (https://github.com/gradio-app/trackio): a local database, a Space or a server."""

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import model_validator

from rlrun.specs.sections.section import Section

NAME_FILE = "trackio-name.txt"


class TrackioParams(Section):
    """Where the run is stored and shown."""

    project: str = "rlrun"
    """Project of the run; `trackio show --project` opens it."""
    group: str | None = None
    """Group of the run. None: the run has no group."""
    space: str | None = None
    """Hugging Face Space to send metrics to. None: they stay on this machine, in TRACKIO_DIR."""
    server: str | None = None
    """Address of a Trackio server to send metrics to; its token is read from TRACKIO_WRITE_TOKEN. None: no
    server."""

    @model_validator(mode="after")
    def _one_place(self) -> "TrackioParams":
        if self.space is not None and self.server is not None:
            raise ValueError("metrics go to one place: set space or server, not both")
        return self


class Trackio:
    """Logs to one Trackio run, which a resumed job continues. The spec is sent without its secrets."""

    Params = TrackioParams
    api_version = 1
    packages = ("trackio",)

    def __init__(self, params: TrackioParams) -> None:
        self.params = params
        self._run: Any = None

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        """Begins a run, or continues the one whose name is in the run's folder."""
        import trackio  # needs the trackers extra; checking a spec does not need it

        file = Path(run_folder) / NAME_FILE
        run_name = file.read_text().strip() if file.is_file() else f"{name}-{secrets.token_hex(3)}"
        self._run = trackio.init(
            project=self.params.project,
            name=run_name,  # Trackio identifies a run by its name, so the name must be unique
            group=self.params.group,
            space_id=self.params.space,
            server_url=self.params.server,
            config=dict(spec),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        file.write_text(run_name + "\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of one step, without NaN and infinity, which plots cannot show."""
        self._run.log({name: value for name, value in metrics.items() if math.isfinite(value)}, step=step)

    def log_table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Logs samples as a Trackio table; those with a prompt and a response as traces too."""
        import trackio

        table = trackio.Table(columns=list(columns), data=[list(row) for row in rows])
        values: dict[str, Any] = {name: table}
        if {"prompt", "response"} <= set(columns):
            cells = (dict(zip(columns, row, strict=True)) for row in rows)
            values[f"{name}/traces"] = [trackio.Trace(_messages(cell), cell) for cell in cells]
        self._run.log(values, step=step)

    def alert(self, step: int, name: str, sentence: str) -> None:
        """Adds an alert to the run, which Trackio also sends to TRACKIO_WEBHOOK_URL if that is set."""
        self._run.alert(title=name, text=sentence, step=step)

    def close(self) -> None:
        """Sends pending metrics and ends the run."""
        if self._run is not None:
            self._run.finish()
            self._run = None


def _messages(sample: dict[str, Any]) -> list[dict[str, Any]]:
    """Takes prompt and response out of a sample's cells; returns them as messages, of which the prompt may
    already be a list in JSON.
    """
    prompt, response = str(sample.pop("prompt")), sample.pop("response")
    try:
        messages = json.loads(prompt)
    except ValueError:
        messages = None
    if not (
        isinstance(messages, list) and all(isinstance(item, dict) and "role" in item for item in messages)
    ):
        messages = [{"role": "user", "content": prompt}]
    return [*messages, {"role": "assistant", "content": response}]
