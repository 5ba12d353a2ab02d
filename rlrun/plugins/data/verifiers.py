"""Prompts from an installed taskset of the verifiers library (https://github.com/PrimeIntellect-ai/verifiers)."""

import inspect
import itertools
from typing import Any

from pydantic import Field

from rlrun.plugins.types import Row
from rlrun.specs.sections.section import Section

QUESTION = "{question}"


class VerifiersParams(Section):
    """A taskset and its settings."""

    taskset: str = Field(min_length=1)
    """Id of the taskset: the installed package that exports it."""
    config: dict[str, Any] = Field(default_factory=dict)
    """The taskset's own settings."""
    size: int | None = Field(default=None, ge=1)
    """Only the first so many tasks; needed where there is no end to them. None: all."""
    prompt_template: str = QUESTION
    """The last user message; `{question}` is replaced by the task's own."""


class Verifiers:
    """Row i is task i; its metadata holds what the `verifiers` reward needs to score the answer.

    One prompt, one answer: tasks that bring tools, a container, a second speaker, or hooks into the place
    where an agent works, are refused.
    """

    Params = VerifiersParams
    api_version = 1

    def __init__(self, params: VerifiersParams) -> None:
        """ValueError for an unknown taskset, settings that it does not take, or tasks of another kind."""
        taskset = load_taskset(params.taskset, params.config)
        if params.size is None and not taskset.bounded:
            raise ValueError(f"there is no end to the tasks of {params.taskset!r}; set size")
        self.params = params
        self._tasks = list(itertools.islice(taskset, params.size))

    def __len__(self) -> int:
        return len(self._tasks)

    def __getitem__(self, index: int) -> Row:
        """ValueError for a task without a prompt."""
        task = self._tasks[index]
        messages = prompt_messages(task)
        asked = [message for message in messages if message["role"] == "user"]
        if not asked:
            raise ValueError(f"{self.params.taskset}[{index}]: the task has no prompt")
        if self.params.prompt_template != QUESTION:
            asked[-1]["content"] = self.params.prompt_template.replace(QUESTION, str(asked[-1]["content"]))
        metadata = {
            "taskset": self.params.taskset,
            "config": self.params.config,
            "task": task.data.model_dump(mode="json", exclude_defaults=True),
        }
        return Row(id=str(task.data.id or index), prompt=messages, metadata=metadata)


def load_taskset(name: str, config: dict[str, Any]) -> Any:
    """The taskset, whose tasks can be asked and scored here. ValueError where they cannot."""
    from verifiers.v1.utils import loaders  # three seconds; only those who use it wait for it

    try:
        taskset = loaders.load_taskset(
            loaders.taskset_config_type(name).model_validate({**config, "id": name})
        )
    except Exception as error:  # the boundary to somebody else's package
        raise ValueError(f"verifiers' taskset {name!r}: {type(error).__name__}: {error}") from error
    if refusal := _refusal(name, taskset):
        raise ValueError(f"verifiers' taskset {name!r} {refusal}; it wants an agent, not one answer")
    return taskset


def prompt_messages(task: Any) -> list[dict[str, Any]]:
    """What the policy is asked, as chat messages."""
    data = task.data
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    if isinstance(data.prompt, str):
        return [*system, {"role": "user", "content": data.prompt}]
    return [*system, *(message.model_dump(mode="json", exclude_none=True) for message in data.prompt or [])]


def _refusal(name: str, taskset: Any) -> str | None:
    """Why tasks cannot be answered in one turn and scored by their answer; None where they can."""
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
        return "prepares a place to work in"
    task = next(iter(taskset), None)
    if task is not None and (needy := _needs_runtime(task)):
        return f"scores the place where an agent worked ({needy})"
    return None


def _needs_runtime(task: Any) -> str | None:
    """The first of a task's rewards and metrics that cannot do without a runtime."""
    for function in [*task.hooks("reward"), *task.hooks("metric")]:
        parameter = inspect.signature(function).parameters.get("runtime")
        if parameter is not None and parameter.default is inspect.Parameter.empty:
            return str(function.__name__)
    return None
