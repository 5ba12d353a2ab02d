"""Prompts from the procedurally generated tasks of the reasoning-gym library (https://arxiv.org/abs/2505.24760)."""

import random
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import Field

from rlrun.plugins.data.task_settings import settings_of
from rlrun.plugins.types import Row
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.sections.section import Section

_OWN = {"seed", "size"}
"""Settings of every task, which the data source has as keys of its own."""
QUESTION, ANSWER = "{question}", "{answer}"
_REGISTERED = re.compile(r"""^register_dataset\(\s*(?:["']([^"']+)["']|(\w+))""", re.MULTILINE)
_CONSTANT = re.compile(r"""^(\w+)\s*=\s*["']([^"']+)["']""", re.MULTILINE)


class ReasoningGymParams(Section):
    """A task and its settings; the same parameters give the same rows everywhere."""

    task: str
    """Name of the task, such as `chain_sum`, `countdown` or `basic_arithmetic`."""
    size: int = Field(default=1000, ge=1)
    """Number of rows."""
    seed: int = Field(default=0, ge=0)
    """Seed of the rows: hold out data by giving evaluation another."""
    task_params: dict[str, Any] = Field(default_factory=dict)
    """The task's own settings, such as `{ min_terms = 2, max_terms = 4 }`."""
    prompt_template: str = QUESTION
    """The prompt; `{question}` is replaced by the task's question."""
    response_template: str = ANSWER
    """The demonstration for SFT; `{answer}` is replaced by the task's answer."""


class ReasoningGym:
    """Row i is entry i of the task; its metadata holds what the `reasoning_gym` reward needs to score.

    Some tasks have many right answers and name none: their rows have neither label nor demonstration.
    """

    Params = ReasoningGymParams
    api_version = 1

    def __init__(self, params: ReasoningGymParams) -> None:
        """ValueError for an unknown task or settings that it does not take."""
        self.params = params
        self._settings = {**params.task_params, "seed": params.seed, "size": params.size}
        self._dataset = make_task(params.task, self._settings)

    @classmethod
    def preview(cls, params: ReasoningGymParams, count: int) -> Iterator[Row | ValueError]:
        """Yields no row: the library takes seconds to load. ValueError for a task that it does not have, or
        for a setting that the task does not have.
        """
        if (tasks := tasks_on_disk()) and params.task not in tasks:
            raise _unknown(params.task, tasks)
        settings = settings_of(params.task) if params.task_params else None
        for name in params.task_params if settings else ():
            if settings and name not in settings:
                raise _unknown_setting(params.task, name, settings - _OWN)
        yield from ()

    def __len__(self) -> int:
        return self.params.size

    def __getitem__(self, index: int) -> Row:
        """ValueError where the task's generator fails on this entry."""
        try:
            with _seeded(f"{self.params.seed} {index}"):
                entry = self._dataset[index]
        except Exception as error:  # the boundary to a library's generators
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
    """Some tasks draw from Python's global generator; it gives the same row every time, and is put back."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def make_task(task: str, settings: dict[str, Any]) -> Any:
    """A task's dataset, which also scores answers. ValueError for an unknown task or wrong settings."""
    import reasoning_gym  # takes a second; only those who use it wait for it

    known = reasoning_gym.factory.DATASETS
    if task not in known:
        raise _unknown(task, known)
    try:
        return reasoning_gym.create_dataset(task, **settings)
    except (TypeError, AssertionError, ValueError) as error:
        raise ValueError(f"reasoning-gym's task {task!r} does not take these settings: {error}") from error


def _unknown(task: str, known: Collection[str]) -> ValueError:
    meant = nearest(task, known)
    cure = f"did you mean {meant!r}?" if meant else f"it has {', '.join(sorted(known))}"
    return ValueError(f"reasoning-gym has no task {task!r}; {cure}")


def _unknown_setting(task: str, name: str, settings: Collection[str]) -> ValueError:
    meant = nearest(name, settings)
    cure = f"did you mean {meant!r}?" if meant else f"it takes {', '.join(sorted(settings))}"
    return ValueError(f"reasoning-gym's task {task!r} has no setting {name!r} (task_params); {cure}")


def tasks_on_disk() -> set[str]:
    """Names of the installed library's tasks, found without importing it; empty where it is not installed."""
    package = find_spec("reasoning_gym")
    folders = [Path(folder) for folder in package.submodule_search_locations or ()] if package else []
    names: set[str] = set()
    for file in (file for folder in folders for file in folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        constants = dict(_CONSTANT.findall(text))
        registered = (literal or constants.get(name) for literal, name in _REGISTERED.findall(text))
        names.update(filter(None, registered))
    return names
