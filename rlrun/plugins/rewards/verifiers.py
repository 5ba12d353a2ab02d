"""Scores an answer with a task of the verifiers library (https://github.com/PrimeIntellect-ai/verifiers)."""

import json
from collections.abc import Mapping
from typing import Any

from rlrun.plugins.data.verifiers import load_taskset, prompt_messages
from rlrun.plugins.types import Row, Sample
from rlrun.specs.sections.section import Section


class VerifiersRewardParams(Section):
    """Which of a task's rewards counts."""

    reward: str | None = None
    """Name of one of the task's rewards. None: their sum, weighted as the task says."""


class Verifiers:
    """Scores rows of the `verifiers` data source. Judges of a taskset are called as the taskset specifies."""

    Params = VerifiersRewardParams
    api_version = 1

    def __init__(self, params: VerifiersRewardParams) -> None:
        import verifiers.v1  # noqa: F401  (three seconds, paid before the first sample's clock runs)

        self.params = params
        self._tasksets: dict[str, Any] = {}

    @classmethod
    def check_row(cls, params: VerifiersRewardParams, row: Row) -> None:
        """Raises ValueError for a row of another data source."""
        if not {"taskset", "config", "task"} <= row.metadata.keys():
            raise ValueError("the row has no task of verifiers; use the verifiers data source")

    async def score(self, sample: Sample) -> float:
        """Returns the task's reward. Raises ValueError for a row of another source, or if the task lacks the
        chosen reward.
        """
        metadata = sample.prompt.row.metadata
        self.check_row(self.params, sample.prompt.row)
        task = self._task(metadata)
        trace = _trace(task, sample.text)
        await task.score(trace)
        if self.params.reward is None:
            return float(trace.reward)
        reward = trace.rewards.get(self.params.reward)
        if reward is None:
            rewards = ", ".join(trace.rewards)
            raise ValueError(f"the task has no reward {self.params.reward!r}; it has {rewards}")
        return float(reward.score)

    def _task(self, metadata: Mapping[str, Any]) -> Any:
        key = json.dumps([metadata["taskset"], metadata["config"]], sort_keys=True, default=str)
        if key not in self._tasksets:
            self._tasksets[key] = load_taskset(metadata["taskset"], metadata["config"])
        taskset = self._tasksets[key]
        kind = taskset.task_type()
        return kind(kind.data_type().model_validate(metadata["task"]), taskset.config.task)


def _trace(task: Any, answer: str) -> Any:
    """Returns a finished conversation with the task's messages and the answer."""
    from verifiers.v1.configs.agent import AgentConfig
    from verifiers.v1.trace import AgentInfo, MessageNode, Trace, TraceTask

    messages = [*prompt_messages(task), {"role": "assistant", "content": answer}]
    nodes = [
        MessageNode(parent=index - 1 if index else None, message=message, sampled=index == len(messages) - 1)
        for index, message in enumerate(messages)
    ]
    trace_task = TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    agent = AgentInfo(config=AgentConfig())
    return Trace(task=trace_task, agent=agent, nodes=nodes, is_completed=True, ok=True)
