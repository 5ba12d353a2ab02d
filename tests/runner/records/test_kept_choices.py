from pathlib import Path

import pytest

from rlrun.runner.records.kept_choices import keep_choices
from rlrun.specs.reading import engine_types, loading
from rlrun.specs.reading.loading import LoadedSpec, load_spec

BASE = Path(__file__).parents[2] / "specs" / "base.toml"
JUDGE = '[[engines]]\nname = "judge"\npath = "big"\n'


def loaded_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *overrides: str, sglang: bool) -> LoadedSpec:
    monkeypatch.setattr(engine_types, "is_installed", lambda package: sglang)
    judge = tmp_path / "judge.toml"
    judge.write_text(JUDGE)
    return load_spec([BASE, judge], ["cluster.gpus_per_node=2", *overrides])


@pytest.mark.parametrize(("then", "now"), [(True, False), (False, True)])
def test_a_resumed_run_keeps_its_engines_whatever_is_installed_now(
    then: bool, now: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = loaded_with(tmp_path, monkeypatch, sglang=then)
    lock = {"spec": began.spec.model_dump(mode="json")}
    resumed = keep_choices(loaded_with(tmp_path, monkeypatch, sglang=now), lock)
    assert resumed.spec == began.spec
    assert [line.rpartition(": ")[2] for line in resumed.engine_reasons()] == ["the run began with them"] * 2


@pytest.mark.parametrize(
    ("overrides", "kind"),
    [(["engine.type=native"], "native"), (["engine.weight_sync=disk"], "sglang")],
)
def test_what_the_spec_says_now_counts_more_than_the_lock(
    overrides: list[str], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = loaded_with(tmp_path, monkeypatch, sglang=kind == "native")
    lock = {"spec": began.spec.model_dump(mode="json")}
    resumed = keep_choices(loaded_with(tmp_path, monkeypatch, *overrides, sglang=False), lock)
    assert resumed.spec.engine.type == kind != began.spec.engine.type


@pytest.mark.parametrize("native", [True, False], ids=["then float32", "then bfloat16"])
def test_a_resumed_run_keeps_its_precision_on_another_processor(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "multiplies_bfloat16", lambda: not native)
    lock = {"spec": load_spec([BASE]).spec.model_dump(mode="json")}
    monkeypatch.setattr(loading, "multiplies_bfloat16", lambda: native)
    before = "float32" if native else "bfloat16"
    resumed = keep_choices(load_spec([BASE]), lock)
    assert (resumed.spec.trainer.dtype, resumed.spec.engine.dtype) == (before, before)
    assert resumed.dtype_reasons() == [f"trainer.dtype and engine.dtype are {before}: the run began with it"]
    given = keep_choices(load_spec([BASE], ["trainer.dtype=float32"]), lock)
    assert (given.spec.trainer.dtype, given.spec.engine.dtype) == ("float32", before)


def test_a_lock_without_the_section_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_with(tmp_path, monkeypatch, sglang=True)
    assert keep_choices(loaded, {"spec": {}}).spec == loaded.spec


@pytest.mark.parametrize(
    ("before", "overrides", "kept"),
    [(False, [], False), (None, [], None), (True, [], None), (False, ["trainer.share_prefixes=true"], True)],
)
def test_a_run_that_began_without_shared_prefixes_keeps_doing_without(
    before: bool | None, overrides: list[str], kept: bool | None
) -> None:
    lock = {"spec": {"trainer": {"share_prefixes": before}}}
    resumed = keep_choices(load_spec([BASE], overrides), lock)
    assert resumed.spec.trainer.given("share_prefixes") is kept
