from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.reading import engine_types

BASE = Path(__file__).parents[1] / "base.toml"
SFT = Path(__file__).parents[3] / "rlrun" / "specs" / "recipes" / "sft.toml"
ON_A_GPU = ["cluster.gpus_per_node=1"]


@pytest.fixture(params=[True, False], ids=["sglang", "no-sglang"])
def installed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(engine_types, "is_installed", lambda package: bool(request.param))
    return bool(request.param)


def test_a_gpu_job_uses_sglang_where_it_is_installed(installed: bool) -> None:
    loaded = load_checked_spec([BASE], ON_A_GPU)
    assert loaded.spec.engine.type == ("sglang" if installed else "native")
    [line] = loaded.engine_reasons()
    assert line.startswith(
        f"[engine] uses {loaded.spec.engine.type} engines: SGLang is {'not ' * (not installed)}installed"
    )
    warnings = loaded.warnings()
    assert len(warnings) == (not installed)
    for warning in warnings:
        assert warning.key == "engine.type"
        assert warning.cure is not None and "pip install" in warning.cure


def test_a_written_type_is_kept_and_needs_no_reason(installed: bool) -> None:
    loaded = load_checked_spec([BASE], [*ON_A_GPU, "engine.type=native"])
    assert (loaded.spec.engine.type, loaded.engine_reasons(), loaded.warnings()) == ("native", [], [])


def test_a_plan_for_another_host_does_not_depend_on_this_one(installed: bool) -> None:
    loaded = load_checked_spec([BASE], ON_A_GPU, planning=True, other_host=True)
    assert loaded.spec.engine.type == "sglang"
    assert loaded.engine_reasons() == [
        "[engine] uses sglang engines: SGLang is assumed to be installed where the job runs"
    ]


def test_every_section_of_engines_is_filled_in(tmp_path: Path, installed: bool) -> None:
    judge = tmp_path / "judge.toml"
    judge.write_text(
        '[[engines]]\nname = "judge"\npath = "big"\n[[engines]]\nname = "old"\npath = "b"\ntype = "native"\n'
    )
    loaded = load_checked_spec([BASE, judge], ["cluster.gpus_per_node=3"])
    kind = "sglang" if installed else "native"
    assert [section.type for section in loaded.spec.engines] == [kind, "native"]
    assert loaded.engine_reasons()[1].startswith(f'[[engines]] "judge" uses {kind} engines: SGLang is')


def test_an_algorithm_without_rollouts_has_no_engine_to_choose(installed: bool) -> None:
    loaded = load_checked_spec([SFT])
    assert (loaded.spec.engine.type, loaded.engine_reasons(), loaded.warnings()) == (None, [], [])


@pytest.mark.parametrize(
    "overrides",
    [["engine=5"], ["engines=5"], ["engines=[5]"], ["cluster=5"], ["cluster.gpus_per_node=[1]"]],
    ids=str,
)
def test_values_that_are_not_tables_are_one_problem(overrides: list[str], installed: bool) -> None:
    with pytest.raises(SpecError) as raised:
        load_checked_spec([BASE], overrides)
    assert len(raised.value.problems) == 1


def test_a_broken_number_of_gpus_does_not_also_blame_the_keys_of_sglang(installed: bool) -> None:
    with pytest.raises(SpecError) as raised:
        load_checked_spec([BASE], ['cluster.gpus_per_node="8"', "engine.tensor=2"])
    assert [problem.key for problem in raised.value.problems] == ["cluster.gpus_per_node"]


def test_a_clone_of_the_repository_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_clone" / "python").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    assert not engine_types.is_installed("a_clone")
    assert engine_types.is_installed("pytest")
