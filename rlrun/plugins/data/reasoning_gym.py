"""Prompts from the procedurally generated tasks of the reasoning-gym library
(https://arxiv.org/abs/2505.24760).

Tasks and settings are looked up in the library's source, since importing it takes seconds.
"""

import ast
import random
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import Field, TypeAdapter, ValidationError

from rlrun.plugins.types import Row
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.sections.section import Section

_OWN = {"seed", "size"}
"""Settings that every task has; here they are keys of the data source, not of `task_params`."""
QUESTION, ANSWER = "{question}", "{answer}"
_REGISTERED = re.compile(r"""register_dataset\(\s*(?:["']([^"']+)["']|(\w+))\s*,\s*\w+\s*,\s*(\w+)""")
_TYPES: dict[str, Any] = {
    "int": int | float,
    "float": float,
    "bool": bool,
    "str": str,
    "Optional[int]": int | float | None,
    "Optional[str]": str | None,
    "list[str]": list[str] | tuple[str, ...],
    "list[float]": list[float],
}
"""The annotations of nearly all settings; values of others are checked only when the task is made.

The defaults of a few settings differ from their annotations: a fraction for `int`, a tuple for a list.
"""
_CONSTANT = re.compile(r"""^(\w+)\s*=\s*["']([^"']+)["']""", re.MULTILINE)


class ReasoningGymParams(Section):
    """The task and its settings. The same parameters give the same rows on every machine."""

    task: str
    """Name of the task, such as `chain_sum`, `countdown` or `basic_arithmetic`."""
    size: int = Field(default=1000, ge=1)
    """Number of rows."""
    seed: int = Field(default=0, ge=0)
    """Seed of the rows. Give evaluation another seed to hold out data."""
    task_params: dict[str, Any] = Field(default_factory=dict)
    """The task's own settings, such as `{ min_terms = 2, max_terms = 4 }`."""
    prompt_template: str = QUESTION
    """The prompt; `{question}` is replaced by the task's question."""
    response_template: str = ANSWER
    """The demonstration for SFT; `{answer}` is replaced by the task's answer."""


class ReasoningGym:
    """Row i is entry i of the task. Its metadata hold the entry, which the `reasoning_gym` reward needs.

    Some tasks have many right answers and do not name one: their rows have neither label nor demonstration.
    """

    Params = ReasoningGymParams
    api_version = 1

    def __init__(self, params: ReasoningGymParams) -> None:
        """Raises ValueError for an unknown task, or for settings that the task does not take."""
        self.params = params
        self._settings = {**params.task_params, "seed": params.seed, "size": params.size}
        self._dataset = make_task(params.task, self._settings)

    @classmethod
    def preview(cls, params: ReasoningGymParams, count: int) -> Iterator[Row | ValueError]:
        """Yields no rows, since the library takes seconds to import; only checks names and types.

        Raises ValueError for an unknown task, or for a setting that the task does not have or take.
        """
        if (tasks := tasks_on_disk()) and params.task not in tasks:
            raise _unknown(params.task, tasks)
        if params.task_params and (settings := settings_of(params.task)):
            _check_settings(params.task, params.task_params, settings)
        yield from ()

    def __len__(self) -> int:
        return self.params.size

    def __getitem__(self, index: int) -> Row:
        """Returns row `index`. Raises ValueError if the task's generator fails on this entry."""
        try:
            with _seeded(f"{self.params.seed} {index}"):
                entry = self._dataset[index]
        except Exception as error:  # a boundary: the library's generators may raise anything
            raise ValueError(f"{self.params.task}[{index}]: {type(error).__name__}: {error}") from error
        answer = entry["answer"]
        return Row(
            id=str(index),
            prompt=self.params.prompt_template.replace(QUESTION, entry["question"]),
            label=answer,
            metadata={"task": self.params.task, "task_params": self._settings, "entry": entry},
            response=answer and self.params.response_template.replace(ANSWER, str(answer)),
        )


@contextmanager
def _seeded(seed: str) -> Iterator[None]:
    """Seeds Python's global random generator, which some tasks draw from, and restores its state afterwards.

    Without it, the same entry would differ from one read to the next.
    """
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def import_library() -> Any:
    """Returns the library, whose first import takes a second.

    Two of its hundred tasks need cellpylib, whose import takes another second, since it brings matplotlib. So
    it is imported when one of them uses it.
    """
    if "reasoning_gym" not in sys.modules and "cellpylib" not in sys.modules:
        sys.modules["cellpylib"] = _ImportedOnUse("cellpylib")
    return import_module("reasoning_gym")


class _ImportedOnUse(ModuleType):
    """Stands for a module that is imported when an attribute of it is used."""

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(import_module(self.__name__), attribute)


def make_task(task: str, settings: dict[str, Any]) -> Any:
    """Returns a task's dataset, which also scores answers.

    Raises ValueError for an unknown task or wrong settings.
    """
    reasoning_gym = import_library()
    dataset_names = reasoning_gym.factory.DATASETS
    if task not in dataset_names:
        raise _unknown(task, dataset_names)
    try:
        return reasoning_gym.create_dataset(task, **settings)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f"reasoning-gym's task {task!r} does not take these settings: {error}") from error


def _unknown(task: str, dataset_names: Collection[str]) -> ValueError:
    meant = nearest(task, dataset_names)
    cure = f"did you mean {meant!r}?" if meant else f"it has {', '.join(sorted(dataset_names))}"
    return ValueError(f"reasoning-gym has no task {task!r}; {cure}")


def _check_settings(task: str, given: Mapping[str, Any], settings: Mapping[str, str]) -> None:
    """Raises ValueError if a task lacks a setting that was given, or if its value has another type."""
    for name, value in given.items():
        if name not in settings:
            raise _unknown_setting(task, name, settings.keys() - _OWN)
        if not is_of_type(value, settings[name]):
            raise _wrong_setting(task, name, settings[name], value)


def _unknown_setting(task: str, name: str, settings: Collection[str]) -> ValueError:
    meant = nearest(name, settings)
    cure = f"did you mean {meant!r}?" if meant else f"it takes {', '.join(sorted(settings))}"
    return ValueError(f"reasoning-gym's task {task!r} has no setting {name!r} (task_params); {cure}")


def _wrong_setting(task: str, name: str, annotation: str, value: Any) -> ValueError:
    setting = f"the setting {name!r} of reasoning-gym's task {task!r} (task_params)"
    return ValueError(f"{setting} is of type {annotation}, found {value!r}")


def tasks_on_disk() -> set[str]:
    """Returns the names of the installed library's tasks; none if it is not installed."""
    return set(_registered())


def settings_of(task: str) -> dict[str, str] | None:
    """Returns the names of a task's settings with their annotations; None if the source does not tell."""
    registered = _registered().get(task)
    return None if registered is None else _fields(*registered)


def is_of_type(value: Any, annotation: str) -> bool:
    """Returns whether a setting may have the value, as far as its annotation is known."""
    try:
        TypeAdapter(_TYPES.get(annotation, Any)).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


@cache
def _registered() -> dict[str, tuple[str, str]]:
    """Returns the source file's text and the name of the settings' class of each task."""
    package = find_spec("reasoning_gym")
    folders = (package.submodule_search_locations or ()) if package else ()
    tasks: dict[str, tuple[str, str]] = {}
    for text in (file.read_text("utf-8") for folder in folders for file in Path(folder).rglob("*.py")):
        constants = dict(_CONSTANT.findall(text))
        for literal, name, config in _REGISTERED.findall(text):
            if task := literal or constants.get(name):
                tasks[task] = (text, config)
    return tasks


def _fields(text: str, config: str) -> dict[str, str] | None:
    """Returns the names and annotations of a class; None if it has base classes and may inherit more."""
    classes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)}
    if config not in classes or classes[config].bases:
        return None
    body = classes[config].body
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
