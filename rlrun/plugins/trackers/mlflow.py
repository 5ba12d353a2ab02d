"""Sends metrics to MLflow (https://mlflow.org): to a tracking server, or to files in the run's folder."""

import json
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.specs.sections.section import Section

ID_FILE = "mlflow-id.txt"
MAX_VALUE_LENGTH = 6000
"""Length in characters of a parameter's value that every MLflow server accepts; longer values are cut."""
PARAMETERS_AT_ONCE = 100
METRICS_AT_ONCE = 1000


class MlflowParams(Section):
    """Where the run is stored."""

    tracking_uri: str | None = None
    """Address of the tracking server. None: the folder `mlruns` in the run's folder."""
    experiment: str = "rlrun"
    """Name of the run's experiment, which is created if it does not exist."""


class Mlflow:
    """Logs to one MLflow run, which a resumed job continues.

    The run's parameters are the spec's keys, without secrets.
    """

    Params = MlflowParams
    api_version = 1
    packages = ("mlflow",)

    def __init__(self, params: MlflowParams) -> None:
        self.params = params
        self._client: Any = None
        self._run_id = ""

    def start(self, run_folder: str, name: str, spec: Mapping[str, Any]) -> None:
        """Begins a run, or continues the one whose id is in the run's folder."""
        folder = Path(run_folder)
        uri = self.params.tracking_uri
        if uri is None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow refuses files otherwise
            uri = (folder / "mlruns").resolve().as_uri()
        from mlflow import MlflowClient  # needs the trackers extra; checking a spec does not need it

        self._client = MlflowClient(tracking_uri=uri)
        id_file = folder / ID_FILE
        if id_file.is_file():
            self._run_id = id_file.read_text().strip()
            return
        self._run_id = self._client.create_run(self._experiment(), run_name=name).info.run_id
        id_file.write_text(self._run_id + "\n")
        self._log_parameters(spec)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Logs the metrics of one step, without NaN and infinity, which some servers refuse."""
        from mlflow.entities import Metric

        now = round(time.time() * 1000)
        points = [
            Metric(name, float(value), now, step) for name, value in metrics.items() if math.isfinite(value)
        ]
        for begin in range(0, len(points), METRICS_AT_ONCE):
            self._client.log_batch(self._run_id, metrics=points[begin : begin + METRICS_AT_ONCE])

    def log_table(self, step: int, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Writes samples into the run's artifact `<name>/step-N.json`, in the layout of MLflow's tables."""
        table = {"columns": list(columns), "data": [list(row) for row in rows]}
        self._client.log_dict(self._run_id, table, f"{name}/step-{step}.json")

    def close(self) -> None:
        """Ends the run. A resumed job reopens it by logging to it."""
        if self._client is not None:
            self._client.set_terminated(self._run_id)
            self._client = None

    def _experiment(self) -> str:
        name = self.params.experiment
        experiment = self._client.get_experiment_by_name(name)
        return str(experiment.experiment_id if experiment else self._client.create_experiment(name))

    def _log_parameters(self, spec: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        parameters = [Param(key, value[:MAX_VALUE_LENGTH]) for key, value in _flat(spec)]
        for begin in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(self._run_id, params=parameters[begin : begin + PARAMETERS_AT_ONCE])


def _flat(spec: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yields the dotted keys and their values as text."""
    for key, value in spec.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value if isinstance(value, str) else json.dumps(value, default=str)
