"""Prompts from an installed taskset of the verifiers library (https://github.com/PrimeIntellect-ai/verifiers)."""

import inspect
import itertools
from typing import Any

from pydantic import Field

from rlrun.plugins.types import Row
from rlrun.specs.sections.section import Section

QUESTION = "{question}"


class VerifiersParams(Section):
    """The taskset and its settings."""

    taskset: str = Field(min_length=1)
    """Id of the taskset: the installed package that exports it."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The taskset's own settings."""
    size: int | None = Field(default=None, ge=1)
    """Uses only this many tasks, the first ones. A taskset without an end needs it. None: all tasks."""
    prompt_template: str = QUESTION
    """Template of the last user message; `{question}` is replaced by the task's own message."""


class Verifiers:
    """Row i is task i. Its metadata hold the task, which the `verifiers` reward needs to score the answer.

    A task must have one prompt and one answer. Tasks that need tools, a container, a second speaker, or
    hooks into an agent's workspace are refused.
    """

    Params = VerifiersParams
    api_version = 1

    def __init__(self, params: VerifiersParams) -> None:
        """Raises ValueError for an unknown taskset, for wrong settings, or for tasks that need an agent."""
        taskset = load_taskset(params.taskset, params.config)
        if params.size is None and not taskset.bounded:
            raise ValueError(f"the taskset {params.taskset!r} has no end; set size")
        self.params = params
        self._tasks = list(itertools.islice(taskset, params.size))

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Row:
        """Returns row `index`. Raises ValueError for a task without a prompt."""
        task = self._tasks[index]
        messages = prompt_messages(task)
        user_messages = [message for message in messages if message["role"] == "user"]
        if not user_messages:
            raise ValueError(f"{self.params.taskset}[{index}]: the task has no prompt")
        if self.params.prompt_template != QUESTION:
            user_messages[-1]["content"] = self.params.prompt_template.replace(
                QUESTION, str(user_messages[-1]["content"])
            )
        metadata = {
            "taskset": self.params.taskset,
            "config": self.params.config,
            "task": task.data.model_dump(mode="json", exclude_defaults=True),
        }
        return Row(id=str(task.data.id or index), prompt=messages, metadata=metadata)


def load_taskset(name: str, config: dict[str, Any]) -> Any:
    """Returns the taskset. Raises ValueError if rlrun cannot run and score its tasks."""
    from verifiers.v1.utils import loaders  # importing it takes three seconds

    try:
        taskset = loaders.load_taskset(
            loaders.taskset_config_type(name).model_validate({**config, "id": name})
        )
    except Exception as error:  # a boundary: a taskset's package may raise anything
        raise ValueError(f"verifiers' taskset {name!r}: {type(error).__name__}: {error}") from error
    if refusal := _refusal(name, taskset):
        raise ValueError(f"verifiers' taskset {name!r} {refusal}; use the environment `verifiers`")
    return taskset


def prompt_messages(task: Any) -> list[dict[str, Any]]:
    """Returns the task's prompt as chat messages."""
    data = task.data
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    return [*system, *(message.model_dump(mode="json", exclude_none=True) for message in data.prompt or [])]


def _refusal(name: str, taskset: Any) -> str | None:
    """Returns why the tasks cannot be answered in one turn and scored by the answer; None if they can."""
    from verifiers.v1.envs.single_agent import SingleAgentEnv
    from verifiers.v1.task import Task
    from verifiers.v1.utils.loaders import environment_class

    kind = taskset.task_type()
    if environment_class(name) is not SingleAgentEnv:
        return "has an environment of its own"
    if kind.NEEDS_CONTAINER:
        return "needs a container"
    if taskset.toolsets(taskset.config) or kind.toolsets(taskset.config.task):
        return "has tools"
    if kind.setup is not Task.setup or kind.finalize is not Task.finalize:
        return "prepares a workspace"
    task = next(iter(taskset), None)
    if task is not None and (needy := _needs_runtime(task)):
        return f"scores an agent's workspace ({needy})"
    return None


def _needs_runtime(task: Any) -> str | None:
    """Returns the name of the first reward or metric of the task that needs a runtime; None if none does."""
    for function in [*task.hooks("reward"), *task.hooks("metric")]:
        parameter = inspect.signature(function).parameters.get("runtime")
        if parameter is not None and parameter.default is inspect.Parameter.empty:
            return str(function.__name__)
    return None
