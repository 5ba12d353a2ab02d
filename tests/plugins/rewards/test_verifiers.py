"""Tasks of the verifiers library as rows, and their own scores as rewards."""

from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.registry import PluginError, build
from rlrun.plugins.testing import check_data, check_reward, sample
from rlrun.plugins.types import Row, Sample

TASKSET = """
from collections.abc import Iterable
import verifiers.v1 as vf

class SumData(vf.TaskData):
    answer: str

class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward
    async def brief(self, task: SumData, trace: vf.Trace) -> float:
        assert trace.messages[0].content == task.system_prompt
        return float(len(trace.last_reply) < 3)

class SumConfig(vf.TasksetConfig):
    size: int = 4

class Sums(vf.Taskset[SumTask, SumConfig]):
    def load(self) -> Iterable[SumTask]:
        for i in range(self.config.size):
            data = SumData(id=f"sum-{i}", prompt=f"{i} + {i}?", answer=str(2 * i), system_prompt="Add.")
            yield SumTask(data, self.config.task)

__all__ = ["Sums"]
"""


def taskset(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *changes: tuple[str, str]) -> str:
    """An installed taskset of that name, the one above with some lines changed."""
    source = TASKSET
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(folder)
    return name


def answers(row: Row, *texts: str) -> list[Sample]:
    return [sample(text, metadata=row.metadata) for text in texts]


def test_a_task_is_a_row_and_scores_its_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = taskset(tmp_path, monkeypatch, "sums")
    rows = check_data("verifiers", {"taskset": name, "config": {"size": 3}})
    assert [row.id for row in rows] == ["sum-0", "sum-1", "sum-2"]
    assert rows[2].prompt == [{"role": "system", "content": "Add."}, {"role": "user", "content": "2 + 2?"}]
    assert check_reward("verifiers", {}, answers(rows[2], "4", "it is 4", "5")) == [3, 0, 1]
    assert check_reward("verifiers", {"reward": "right"}, answers(rows[2], "4", "5")) == [1, 0]


def test_only_the_first_tasks_of_an_endless_taskset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = ("    def load", "    INFINITE = True\n\n    def load")
    name = taskset(tmp_path, monkeypatch, "endless_sums", endless)
    with pytest.raises(PluginError, match="the taskset 'endless_sums' has no end; set size"):
        build("data", "verifiers", {"taskset": name})
    assert len(check_data("verifiers", {"taskset": name, "size": 2})) == 2


CONTAINER = "    NEEDS_CONTAINER = True\n\n"
TOOLS = "    @classmethod\n    def toolsets(cls, config):\n        return ['search']\n\n"
SETUP = "    async def setup(self, trace, runtime):\n        pass\n\n"
REWARD = "    @vf.reward(weight=2.0)"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "in_a_container",
            (REWARD, f"    NEEDS_CONTAINER = True\n\n{REWARD}"),
            "needs a container",
        ),
        ("with_tools", (REWARD, TOOLS + REWARD), "has tools"),
        ("set_up", (REWARD, SETUP + REWARD), "prepares a workspace"),
        ("on_a_runtime", ("def right(self,", "def right(self, runtime,"), r"agent's workspace \(right\)"),
    ],
)
def test_tasks_for_agents_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: tuple[str, str], message: str
) -> None:
    taskset(tmp_path, monkeypatch, name, change)
    with pytest.raises(PluginError, match=f"{name}.*{message}.*use the environment"):
        build("data", "verifiers", {"taskset": name})


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"taskset": "not-there"}, "'not-there' not found"),
        ({"taskset": "sized_sums", "config": {"sise": 3}}, "sise"),
    ],
)
def test_what_cannot_be_loaded_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], message: str
) -> None:
    taskset(tmp_path, monkeypatch, "sized_sums")
    with pytest.raises(PluginError, match=message):
        build("data", "verifiers", params)


def test_a_task_without_a_prompt_is_a_broken_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = taskset(tmp_path, monkeypatch, "silent_sums", ('prompt=f"{i} + {i}?", ', ""))
    with pytest.raises(ValueError, match=r"silent_sums\[1\]: the task has no prompt"):
        build("data", "verifiers", {"taskset": name})[1]


async def test_the_reward_asks_for_its_own_rows_and_rewards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = taskset(tmp_path, monkeypatch, "scored_sums")
    [answer] = answers(build("data", "verifiers", {"taskset": name})[0], "0")
    with pytest.raises(ValueError, match="use the verifiers data source"):
        await build("rewards", "verifiers", {}).score(sample("0"))
    with pytest.raises(ValueError, match="no reward 'rihgt'; it has brief, right"):
        await build("rewards", "verifiers", {"reward": "rihgt"}).score(answer)
