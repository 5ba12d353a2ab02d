"""Environments of the verifiers library (https://github.com/PrimeIntellect-ai/verifiers), version 0.4: its
tasksets with tools, simulated users, harnesses and runtimes.

    run ─▶ verifiers' Env ─▶ harness in its runtime ─▶ verifiers' interception ─▶ the policy's endpoint
                                  └─ tools (MCP)

A harness is an agent, and rlrun records the tokens of its requests as those of any agent.
"""

import asyncio
import copy
import itertools
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from statistics import fmean
from typing import Any

from pydantic import Field

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.data.verifiers import prompt_messages
from rlrun.plugins.failures import Failure, InfrastructureError, PolicyError
from rlrun.specs.sections.section import Section

_FAILURES = {
    "SandboxError": Failure.SANDBOX,
    "InterceptionError": Failure.SERVICE,
    "TunnelError": Failure.SERVICE,
}
"""The errors of verifiers that neither the policy nor the task can have caused."""


class VerifiersParams(Section):
    """verifiers' own settings of the environment, and what rlrun makes of its roles."""

    env: dict[str, Any]
    """The table `env` of verifiers' own configuration: `taskset`, `id`, and a table for each role (`agent`
    in most environments) with `harness`, `runtime`, `max_turns` and others. Roles without a runtime get
    `subprocess`; all but the harnesses `bash` and `null` need a container."""
    size: int | None = Field(default=None, ge=1)
    """Uses only this many tasks, the first ones. A taskset without an end needs it. None: all tasks."""
    engines: dict[str, str] = Field(default_factory=dict)
    """The model of `[[engines]]` that plays a role, by role, such as `{ user = "customer" }`. The rollout's
    `engines` must name it, too. Its answers are not trained; the policy plays all other roles."""
    reward: str | None = None
    """The role whose reward is that of the execution. None: the mean over all that the policy played."""


class Verifiers:
    """Row i is task i of the taskset. An execution is an episode of verifiers' environment.

    Its reward is noted as `reward`, and the task's rewards and metrics by their names, with the role in front
    if there are several.
    """

    Params = VerifiersParams
    api_version = 1

    def __init__(self, params: VerifiersParams) -> None:
        """Raises ValueError for a taskset, harness or setting that verifiers does not have."""
        from verifiers.v1.configs.agent import AgentConfig
        from verifiers.v1.utils.loaders import env_config_type, load_environment

        self.params = params
        taskset = params.env.get("taskset", {}).get("id")
        if not taskset:
            raise ValueError('env.taskset needs an id: env = { taskset = { id = "NAME" } }')
        config = env_config_type(taskset, params.env.get("id", ""))
        fields = config.model_fields.items()
        self._roles = [name for name, field in fields if isinstance(field.default, AgentConfig)]
        if unknown := {*params.engines, *filter(None, [params.reward])} - {*self._roles}:
            raise ValueError(f"this environment has the roles {self._roles}, not {sorted(unknown)}")
        runtimes = {
            role: {"runtime": {"type": "subprocess"}, **params.env.get(role, {})} for role in self._roles
        }
        self._env = load_environment(config.model_validate({**params.env, **runtimes}))
        self._served: AsyncExitStack | None = None
        self._lock = asyncio.Lock()
        self._numbers = itertools.count()

    def tasks(self) -> list[dict[str, Any]]:
        """Returns the taskset's tasks. Raises ValueError if they have no end and `size` is not set."""
        taskset = self._env.taskset
        if self.params.size is None and not taskset.bounded:
            raise ValueError(f"the taskset {self._env.config.taskset.id!r} has no end: set size")
        tasks = itertools.islice(taskset, self.params.size)
        return [
            {
                "id": str(task.data.id or index),
                "prompt": prompt_messages(task) or "the environment begins",
                "metadata": {"task": task.data.model_dump(mode="json", exclude_defaults=True)},
            }
            for index, task in enumerate(tasks)
        ]

    async def run(self, task: AgentTask) -> dict[str, Any]:
        """Runs one episode. Raises InfrastructureError if its sandbox or its services failed, PolicyError if
        the conversation became too long for the policy, and RuntimeError for any other error of it.
        """
        from verifiers.v1.clients import ModelContext

        await self._serve()
        kind = type(self._env.taskset).task_type()
        data = kind.data_type().model_validate(task.metadata["task"])
        variable = f"RLRUN_API_KEY_{next(self._numbers)}"  # verifiers' programs do not inherit *API_KEY*
        os.environ[variable] = task.api_key
        try:
            env = self._for_execution(task, variable)
            context = ModelContext(model="policy", client=_client(task.base_url, variable))
            episode = await env.run_episode(kind(data, env.config.taskset.task), context)
        finally:
            del os.environ[variable]
        _check(episode)
        return self._result(episode.traces)

    async def close(self) -> None:
        """Ends the services and the tools that all executions share."""
        if self._served is not None:
            await self._served.aclose()

    async def _serve(self) -> None:
        """Starts the services and the tools that all executions share, once."""
        async with self._lock:
            if self._served is None:
                stack = AsyncExitStack()
                await stack.enter_async_context(self._env.serving())
                self._served = stack

    def _for_execution(self, task: AgentTask, variable: str) -> Any:
        """Returns the environment with each role's endpoint: the policy, or a model of `[[engines]]`."""
        roles = {}
        for role in self._roles:
            agent = getattr(self._env.config, role)
            if engine := self.params.engines.get(role):
                address = task.engine(engine).address
                client = _client(address.base_url, variable)
                roles[role] = agent.model_copy(update={"client": client, "model": address.model})
            elif agent.client is None:
                client = _client(task.base_url, variable)
                roles[role] = agent.model_copy(update={"client": client, "model": role})
        env = copy.copy(self._env)
        env.config = env.config.model_copy(update=roles)
        # A shared server keeps a client for each endpoint and key until the end: too many for a job.
        env._interception = None
        return env

    def _result(self, traces: Sequence[Any]) -> dict[str, Any]:
        own = [trace for trace in traces if trace.agent.name not in self.params.engines]
        if fixed := sorted({trace.agent.name for trace in own if not trace.agent.trainable}):
            raise RuntimeError(
                f"the environment does not train {', '.join(fixed)}, which the policy plays: name a model of "
                "[[engines]] for it under `engines`"
            )
        scored = [trace for trace in own if self.params.reward in (None, trace.agent.name)]
        info: dict[str, Any] = {}
        for trace in own:
            front = f"{trace.agent.name}_" if len(own) > 1 else ""
            rewards = {name: reward.score for name, reward in trace.rewards.items() if reward is not None}
            values = rewards | {name: value for name, value in trace.metrics.items() if value is not None}
            info |= {f"{front}{name}": value for name, value in values.items()}
        return {**info, "reward": fmean(trace.reward for trace in scored)}


def _client(base_url: str, variable: str) -> Any:
    from verifiers.v1.clients import EvalClientConfig

    return EvalClientConfig(base_url=base_url, api_key_var=variable)


def _check(episode: Any) -> None:
    """Raises the error of an episode that did not end well."""
    if episode.ok:
        return
    errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors[-1:])]
    message = "; ".join(f"{error.type}: {error.message}" for error in errors) or "it has not completed"
    if any("context_length_exceeded" in error.message for error in errors):
        raise PolicyError(message)
    for error in errors:
        if error.type in _FAILURES:
            raise InfrastructureError(message, _FAILURES[error.type])
    raise RuntimeError(message)
