"""Specs as Python objects: `rlrun.load(spec, overrides)` returns a `Job` to plan and launch.

Functions of a notebook reach the processes of a job in a file. A function of a module is named by its file,
but a function that was defined in a notebook or at a prompt has none: its code is written, as cloudpickle
packs it, into a file that defines the function again.
"""

import base64
import hashlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from rlrun.api.runs import LaunchedRun
from rlrun.api.sweeps import Sweep, start_sweep
from rlrun.cli.arguments import spec_path
from rlrun.cli.detached import start_detached
from rlrun.cli.plan.command import plan_as_dict
from rlrun.models.cache import private_folder
from rlrun.plugins.functions import plugin_of
from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.host.atomic_files import write_text
from rlrun.runner.job.preflight import check_files
from rlrun.specs.local_code import ALLOW_LOCAL
from rlrun.specs.problems.findings import SpecText
from rlrun.specs.reading.loading import LoadedSpec
from rlrun.specs.reading.reference import as_document, as_toml
from rlrun.specs.sections.job import Spec

Function = Callable[..., Any]
_MODULE = '''"""The function {name} of a notebook, as rlrun.load packed it."""

import base64

import cloudpickle

import rlrun

{name} = rlrun.{decorator}(
    cloudpickle.loads(
        base64.b64decode(
            "{packed}"
        )
    )
)
'''
_DECORATORS = {"score": "reward", "score_group": "reward", "__call__": "filter", "__getitem__": "data"}


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
    files = [SpecText("spec", as_document(spec), Path.cwd())] if isinstance(spec, Mapping) else _paths(spec)
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
    files: tuple[Path | SpecText, ...]
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
        notes = check_files(self.loaded)
        return [str(problem) for problem in [*self.loaded.warnings(), *notes]]

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
        files = ["-" if isinstance(file, SpecText) else str(file) for file in self.files]
        options = [f"--set={setting}" for setting in settings]
        options += [f"--profile={profile}" for profile in self.profiles]
        return [*files, *options, *([f"--name={name}"] if name else []), *["--resume"] * resume]

    @property
    def _document(self) -> str:
        """The text that a file `-` stands for."""
        return "".join(file.text for file in self.files if isinstance(file, SpecText))


def _paths(spec: str | Path | Sequence[str | Path]) -> list[Path | SpecText]:
    names = [spec] if isinstance(spec, str | Path) else list(spec)
    return [spec_path(str(name)) for name in names]


def plugin_file(function: Callable[..., Any]) -> str:
    """Returns the `type` of a decorated function in a spec: `/path/to/my_rewards.py:brief`.

    Raises TypeError if the function is not decorated, or is not defined at the top of its file.
    """
    plugin = plugin_of(function)
    if plugin is function:
        raise TypeError(
            f"{function!r} is not a plugin: decorate it with @rlrun.reward, @rlrun.filter or @rlrun.data"
        )
    if function.__module__ == "__main__":
        return _packed_file(function, plugin)
    if "." in function.__qualname__:
        raise TypeError(
            f"{function.__qualname__} is inside another function or class: move it to the top level"
        )
    return f"{inspect.getfile(function)}:{function.__name__}"


def _packed_file(function: Callable[..., Any], plugin: type[Any]) -> str:
    """Writes the function's code into a file that is named after its content."""
    import cloudpickle

    packed = base64.b64encode(cloudpickle.dumps(_undecorated(function))).decode()
    decorator = next(name for method, name in _DECORATORS.items() if method in vars(plugin))
    text = _MODULE.format(name=function.__name__, decorator=decorator, packed=packed)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = private_folder("functions") / f"{function.__name__}_{digest}.py"
    write_text(path, text)
    return f"{path}:{function.__name__}"


def _undecorated(function: Any) -> FunctionType:
    """Returns a copy of the function without its plugin class, which is made again where it is loaded."""
    code, name = function.__code__, function.__name__
    copy = FunctionType(code, function.__globals__, name, function.__defaults__, function.__closure__)
    copy.__kwdefaults__, copy.__annotations__ = function.__kwdefaults__, function.__annotations__
    copy.__qualname__, copy.__module__, copy.__doc__ = name, "__main__", function.__doc__
    return copy
