"""The tasks of an environment (docs/environments.md)."""

from dataclasses import replace

from pydantic import Field

from rlrun.plugins.environments.declared import METADATA_KEY, declare
from rlrun.plugins.environments.process import read_tasks
from rlrun.plugins.types import Row
from rlrun.specs.sections.data import EnvironmentSpec
from rlrun.specs.sections.section import Section


class EnvironmentParams(Section):
    """The environment, and how many of its tasks are used."""

    environment: EnvironmentSpec
    """The environment: a table `[data.environment]` with `type` and the environment's own keys."""
    size: int | None = Field(default=None, ge=1)
    """Uses only this many tasks, the first ones. None: all tasks."""


class Environment:
    """Row i is task i of the environment. The rollout `environment` runs it."""

    Params = EnvironmentParams
    api_version = 1

    def __init__(self, params: EnvironmentParams) -> None:
        """Raises PluginError if the environment cannot be constructed, or has no tasks."""
        self.params = params
        key = declare(params.environment)
        tasks = read_tasks(params.environment)[: params.size]
        if not tasks:
            raise ValueError(f"environment {params.environment.type} has no tasks")
        self._rows = [replace(row, metadata={**row.metadata, METADATA_KEY: key}) for row in tasks]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        """Returns task `index`."""
        return self._rows[index]
