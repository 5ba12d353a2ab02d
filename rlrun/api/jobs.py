"""Specs as Python objects: `rlrun.load(spec, overrides)` returns a `Job` to plan and launch."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.api.notebook_functions import plugin_file
from rlrun.api.runs import LaunchedRun
from rlrun.api.sweeps import Sweep, start_sweep
from rlrun.cli.arguments import spec_path
from rlrun.cli.detached import start_detached
from rlrun.cli.plan.command import plan_as_dict
from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.job.preflight import check_files
from rlrun.specs.local_code import ALLOW_LOCAL
from rlrun.specs.problems.findings import Source
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.reading.reference import as_toml
from rlrun.specs.sections.job import Spec

Function = Callable[..., Any]


def load(
    spec: str | Path | Mapping[str, Any] | Sequence[str | Path],
    overrides: Mapping[str, Any] | None = None,
    *,
    profiles: Sequence[str] = (),
    rewards: Sequence[Function] = (),
    filters: Sequence[Function] = (),
    data: Function | None = None,
    local_plugins: bool = False,
) -> "Job":
    """Returns the job of a spec: a TOML file, several, a recipe's name, or a table with the same keys.

    `overrides` sets keys such as `{"trainer.lr": 1e-5}`. `rewards` and `filters` replace those tables, and
    `data` the type of the data source, by functions that are decorated with `@rlrun.reward`, `@rlrun.filter`
    and `@rlrun.data`; they may be defined in a notebook. `local_plugins` allows
    `type = "my_rewards.py:brief"`, and asks `engine.python` for its arguments, as `--allow-local-plugins`
    does; functions given here allow it, too.
    Raises SpecError with every problem of the spec.
    """
    files = [Source("spec", _as_document(spec), Path.cwd())] if isinstance(spec, Mapping) else _paths(spec)
    settings = [f"{key}={as_toml(value)}" for key, value in (overrides or {}).items()]
    for table, functions in (("rewards", rewards), ("filters", filters)):
        if functions:
            types = [{"type": plugin_file(function)} for function in functions]
            settings.append(f"{table}={as_toml(types)}")
    if data is not None:
        settings.append(f"data.type={as_toml(plugin_file(data))}")
    if local_plugins or rewards or filters or data:
        os.environ[ALLOW_LOCAL] = "1"
    loaded = load_checked_spec(files, settings, profiles)
    return Job(loaded, tuple(files), tuple(settings), tuple(profiles))


@dataclass(frozen=True)
class Job:
    """A valid spec that can be planned and launched, as often as one likes."""

    loaded: LoadedSpec
    """The spec, with where each key was set."""
    files: tuple[Path | Source, ...]
    settings: tuple[str, ...]
    """The overrides, as `--set` takes them."""
    profiles: tuple[str, ...]

    @property
    def spec(self) -> Spec:
        """The spec with every default filled in."""
        return self.loaded.spec

    def validate(self) -> list[str]:
        """Checks the model's and the data's files, as `rlrun validate` does; returns the warnings.

        Raises SpecError with every problem.
        """
        check_files(self.loaded)
        return [str(problem) for problem in self.loaded.warnings()]

    def plan(self, *, gpu: str | None = None) -> dict[str, Any]:
        """Returns what `rlrun plan --json` prints: the batch, the devices, memory and time.

        `gpu` is the model of the GPUs, such as `"H100"`. Raises ValueError if the job does not fit.
        """
        return plan_as_dict(self.loaded, gpu)

    def launch(self, *, name: str | None = None, resume: bool = False, new: bool = False) -> LaunchedRun:
        """Starts the job in a process of its own and returns its run as soon as its folder exists.

        The job continues if this process ends. `name`, `resume` and `new` are the options of `rlrun launch`.
        Raises JobError with the launch's output if it fails before that.
        """
        arguments = self._arguments(self.settings, name, resume=resume) + ["--new"] * new
        folder, process = start_detached(arguments, Path(self.spec.runs_dir), self._document)
        return LaunchedRun(folder.path, process)

    def sweep(
        self,
        keys: Mapping[str, Sequence[Any] | Mapping[str, Any]] | None = None,
        *,
        name: str | None = None,
        resume: bool = False,
    ) -> Sweep:
        """Starts a sweep in a process of its own, and returns it as soon as its folder exists.

        `keys` has what `[sweep.keys]` takes: `{"trainer.lr": [1e-6, 1e-5]}`; further keys of `[sweep]` are
        overrides of `rlrun.load`. Raises JobError with the command's output if it fails before that.
        """
        settings = [f"sweep.keys.{key}={as_toml(values)}" for key, values in (keys or {}).items()]
        arguments = self._arguments([*self.settings, *settings], name, resume=resume)
        folder = Path(self.spec.runs_dir) / (name or f"{self.spec.name}-sweep")
        return start_sweep(arguments, self._document, folder)

    def _arguments(self, settings: Sequence[str], name: str | None, *, resume: bool) -> list[str]:
        """Returns the arguments of `rlrun launch` and `rlrun sweep launch`."""
        files = ["-" if isinstance(file, Source) else str(file) for file in self.files]
        options = [f"--set={setting}" for setting in settings]
        options += [f"--profile={profile}" for profile in self.profiles]
        return [*files, *options, *([f"--name={name}"] if name else []), *["--resume"] * resume]

    @property
    def _document(self) -> str:
        """The text that a file `-` stands for."""
        return "".join(file.text for file in self.files if isinstance(file, Source))


def _paths(spec: str | Path | Sequence[str | Path]) -> list[Path | Source]:
    names = [spec] if isinstance(spec, str | Path) else list(spec)
    return [spec_path(str(name)) for name in names]


def _as_document(table: Mapping[str, Any]) -> str:
    """Returns a table as TOML, with one line for each of its keys."""
    return "".join(f"{json.dumps(key)} = {as_toml(value)}\n" for key, value in table.items())
