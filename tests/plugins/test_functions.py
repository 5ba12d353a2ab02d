"""Plain functions as plugins."""

import asyncio
import pickle
import sys
from pathlib import Path

import pytest

from rlrun.plugins.functions import data, filter, plugin_of, reward
from rlrun.plugins.registry import PluginError, build, checked_params, load
from rlrun.plugins.types import Row
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.problems.findings import SpecError

SOURCE = '''
from __future__ import annotations

import rlrun
from rlrun.plugins.types import Drop


@rlrun.reward
def brief(sample, *, limit: int = 2) -> float:
    """1 for a response of few words."""
    return float(len(sample.split()) <= limit)


@rlrun.reward
async def slow(sample) -> float:
    return float(len(sample))


@rlrun.reward
def ranked(samples) -> list[float]:
    return [float(number) for number, _ in enumerate(samples)]


@rlrun.filter
def uneven(group):
    return Drop("even") if len(group) % 2 == 0 else None


@rlrun.data
def sums(*, count: int):
    return [{"prompt": f"{n} + 1 = ?", "label": str(n + 1)} for n in range(count)]


@rlrun.data
def broken():
    return [{"prompt": "1"}, {"label": "no prompt"}]


def bare(sample):
    return 1.0
'''
SPEC = """
[model]
path = "Qwen/Qwen3-0.6B"

[data]
type = "mine.py:sums"
count = 4

[rollout]
batch_size = 2

[[rewards]]
type = "mine.py:brief"
limit = 3

[trainer]
steps = 1
lr = 1e-6
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RLRUN_ALLOW_LOCAL_PLUGINS", "1")
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return path


def test_a_decorated_function_is_a_reward_with_its_keyword_arguments_as_parameters(file: Path) -> None:
    assert build("rewards", f"{file}:brief", {}).score("two words") == 1.0
    assert build("rewards", f"{file}:brief", {"limit": 1}).score("two words") == 0.0
    assert asyncio.run(build("rewards", f"{file}:slow", {}).score("four")) == 4.0
    assert build("rewards", f"{file}:ranked", {}).score_group(["a", "b"]) == [0.0, 1.0]
    with pytest.raises(PluginError, match="limt"):
        build("rewards", f"{file}:brief", {"limt": 1})
    with pytest.raises(PluginError, match="limit"):
        build("rewards", f"{file}:brief", {"limit": "many"})


def test_filters_and_data_sources_are_functions_too(file: Path) -> None:
    verdict = build("filters", f"{file}:uneven", {})
    assert verdict([1, 2]).reason == "even"
    assert verdict([1]) is None
    rows = build("data", f"{file}:sums", {"count": 2})
    assert [rows[number] for number in range(len(rows))] == [
        Row("0", "0 + 1 = ?", "1"),
        Row("1", "1 + 1 = ?", "2"),
    ]
    with pytest.raises(PluginError, match="row 1 is neither a Row nor a table with a prompt"):
        build("data", f"{file}:broken", {})


def test_parameters_are_pickled_by_name(file: Path) -> None:
    params = checked_params("rewards", f"{file}:brief", {"limit": 7})
    assert pickle.loads(pickle.dumps(params)).limit == 7


def test_the_function_itself_can_still_be_called(file: Path) -> None:
    load("rewards", f"{file}:brief")
    assert sys.modules["rlrun_local_mine"].brief("one") == 1.0


def test_a_function_without_the_decorator_is_refused_with_its_name(file: Path) -> None:
    with pytest.raises(PluginError, match=r"if it is a function, decorate it with @rlrun\.reward"):
        load("rewards", f"{file}:bare")


def test_a_misspelt_name_is_answered_with_what_the_file_defines(file: Path) -> None:
    with pytest.raises(PluginError, match=r"has no 'breif'; did you mean 'brief'\? it defines: brief, slow"):
        load("rewards", f"{file}:breif")


@pytest.mark.parametrize(
    ("decorator", "function", "message"),
    [
        pytest.param(reward, lambda sample, label: 1, "must have 1 positional argument", id="two arguments"),
        pytest.param(reward, lambda *samples: 1, "must have 1 positional argument", id="any number"),
        pytest.param(filter, lambda: None, "must have 1 positional argument", id="no argument"),
        pytest.param(data, lambda path: [], "must have 0 positional arguments", id="a data source's"),
        pytest.param(reward, lambda sample, *, limit=1: 1, "its parameter limit has no type", id="no type"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_where_the_function_is_defined(
    decorator, function, message
) -> None:
    with pytest.raises(TypeError, match=message):
        decorator(function)


def test_a_file_is_found_beside_the_spec_from_any_folder(
    file: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = file.with_name("spec.toml")
    spec.write_text(SPEC)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    loaded = load_checked_spec([spec])
    assert loaded.spec.rewards[0].type == f"{file}:brief"
    assert plugin_of(load("data", loaded.spec.data.type)).Params.model_fields.keys() == {"count"}


def test_a_wrong_parameter_of_a_function_is_reported_at_its_place(file: Path) -> None:
    spec = file.with_name("spec.toml")
    spec.write_text(SPEC.replace("limit = 3", "limits = 3"))
    with pytest.raises(SpecError) as caught:
        load_checked_spec([spec])
    (problem,) = caught.value.problems
    assert (problem.line, problem.suggestion) == (14, "limit")
