import json
import shutil
import subprocess
from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.contracts.errors import LaunchRefused, RunFolderError
from rlrun.runner.host.model_files import fetch_model, fingerprint
from rlrun.runner.records.lock import (
    check_same_code,
    check_same_run,
    git_state,
    keep_choices,
    launched_spec,
    lock_differences,
    make_lock,
)
from rlrun.specs.paths import RECIPES
from rlrun.specs.reading import engine_types, loading
from rlrun.specs.reading.differences import Difference
from rlrun.specs.reading.loading import LoadedSpec, load_spec
from rlrun.specs.sections.model import ModelSpec

BASE = Path(__file__).parents[2] / "specs" / "base.toml"
JUDGE = '[[engines]]\nname = "judge"\npath = "big"\n'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    return folder


def locked(tmp_path: Path, model: Path, *overrides: str) -> dict:
    spec = tmp_path / "job.toml"
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "a"}\n')
    spec.write_text(
        f'[model]\npath = "{model}"\n[data]\npath = "{rows}"\n[[trackers]]\ntype = "t"\nkey = "${{env:KEY}}"'
    )
    loaded = load_spec([spec], ["trainer.steps=1", *overrides])
    return json.loads(json.dumps(make_lock(loaded, fetch_model(loaded.spec.model))))


def test_a_lock_pins_what_decides_a_run_and_keeps_secrets_out(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY", "hunter2")
    found = locked(tmp_path, model)
    assert found["spec"]["trainer"]["steps"] == 1
    assert found["model"]["sha256"] == fingerprint(model)
    assert found["versions"]["numpy"]
    assert "[model]" in next(iter(found["sources"].values()))
    assert "hunter2" not in json.dumps(found)
    assert "${env:KEY}" in json.dumps(found)


def test_a_resumed_run_may_change_its_settings_but_not_its_seed(tmp_path: Path, model: Path) -> None:
    dtype = "trainer.dtype=bfloat16"  # float8 needs it, and it is not the default of every processor
    before = locked(tmp_path, model, dtype)
    assert check_same_run(before, locked(tmp_path, model, dtype)) == []
    assert check_same_run(before, locked(tmp_path, model, dtype, "trainer.lr=0.1")) == [
        Difference("trainer.lr", 1e-6, 0.1)
    ]
    assert check_same_run(before, locked(tmp_path, model, dtype, "trainer.precision=float8")) == [
        Difference("trainer.precision", None, "float8")
    ]
    with pytest.raises(RunFolderError, match="the spec changed since the run began: seed: 0 -> 7"):
        check_same_run(before, locked(tmp_path, model, dtype, "seed=7"))


def test_a_resumed_run_keeps_its_model(tmp_path: Path, model: Path) -> None:
    before = locked(tmp_path, model)
    (model / "model.safetensors").write_bytes(b"other")
    with pytest.raises(RunFolderError, match="changed since the run began"):
        check_same_run(before, locked(tmp_path, model))


def test_python_files_that_may_run_are_locked_and_must_not_change(tmp_path: Path, model: Path) -> None:
    (model / "tokenization.py").write_text("")
    before = locked(tmp_path, model, "model.trust_remote_code=true")
    assert [(file["name"], file["size"]) for file in before["model"]["code"]] == [("tokenization.py", 0)]
    trusting = ModelSpec(path=str(model), trust_remote_code=True)
    check_same_code(before, fetch_model(trusting))
    (model / "tokenization.py").write_text("import os")
    (model / "more.py").write_text("")
    with pytest.raises(
        RunFolderError, match=r"changed since the run began: more\.py, tokenization\.py\. They"
    ):
        check_same_code(before, fetch_model(trusting))
    with pytest.raises(RunFolderError, match=r"changed since the run began: tokenization\.py"):
        check_same_code(before, fetch_model(ModelSpec(path=str(model))))


def test_a_fingerprint_knows_names_and_contents(model: Path) -> None:
    first = fingerprint(model)
    (model / "config.json").rename(model / "other.json")
    assert fingerprint(model) != first


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchRefused, match=r"has no config\.json"):
        fetch_model(ModelSpec(path=str(tmp_path)))


def test_no_repository_no_git_state(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None


def test_a_lock_knows_its_data(tmp_path: Path, model: Path) -> None:
    before = locked(tmp_path, model)
    assert list(before["data"]) == ["data.path"]
    (tmp_path / "rows.jsonl").write_text('{"prompt": "b"}\n')
    spec = load_spec([tmp_path / "job.toml"], ["trainer.steps=1"])
    after = make_lock(spec, fetch_model(spec.spec.model))
    assert [each.key for each in lock_differences(before, after)] == ["data.data.path"]


def test_drift_names_every_value_but_the_runs_name(tmp_path: Path, model: Path) -> None:
    before = locked(tmp_path, model)
    assert lock_differences(before, locked(tmp_path, model, "name=other", "runs_dir=elsewhere")) == []
    after = locked(tmp_path, model, "trainer.lr=0.5")
    after["versions"]["torch"] = "9.9"
    assert [str(each) for each in lock_differences(before, after)] == [
        "spec.trainer.lr: 1e-6 -> 0.5",
        f'versions.torch: "{before["versions"]["torch"]}" -> "9.9"',
    ]


def test_a_foreign_repository_runs_no_program(tmp_path: Path) -> None:
    repository, ran = tmp_path / "repository", tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho $0 >> {ran}\n")
    program.chmod(0o755)
    repository.mkdir()

    def git(*words: str, check: bool = True) -> None:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b")
        subprocess.run(["git", "-C", repository, *identity, *words], check=check, capture_output=True)

    git("init", "-q")
    (repository / ".gitattributes").write_text("*.txt filter=evil=1\n*.md filter=slow\n")
    for name in ("a.txt", "a.md"):
        (repository / name).write_text("a")
    git("add", ".")
    git("commit", "-qm", "a")
    assert git_state(repository) == {"commit": git_state(repository)["commit"], "changed": False}
    git("config", "core.fsmonitor", str(program))
    git("config", "filter.evil=1.clean", str(program))
    git("config", "filter.slow.process", str(program))
    git("config", "filter.slow.required", "true")
    shutil.copy(program, repository / ".git" / "hooks" / "post-index-change")
    for name in ("a.txt", "a.md"):
        (repository / name).write_text("b")
    assert git_state(repository)["changed"]
    assert not ran.exists()
    git("status", check=False)
    assert ran.exists()  # the programs run where git is asked without these precautions


def test_a_default_that_a_new_version_resolves_is_no_change_of_the_spec(tmp_path: Path) -> None:
    """Locks of earlier versions have null for keys that follow from the rest."""
    now = {"spec": {"trainer": {"old_log_probs": "rollout", "lr": 1e-5}}, "model": {"sha256": {}}}
    before = {"spec": {"trainer": {"old_log_probs": None, "lr": 1e-6}}, "model": {"sha256": {}}}
    assert [difference.key for difference in check_same_run(before, now)] == ["trainer.lr"]


FULL = Path(__file__).parents[2] / "specs" / "full.toml"


@pytest.mark.parametrize("path", [*sorted(RECIPES.glob("*.toml")), FULL], ids=lambda path: path.stem)
def test_the_spec_of_a_launch_is_read_back_from_its_lock(path: Path) -> None:
    loaded = load_checked_spec([path], ["trainer.lr=3e-6"], planning=True)
    given = json.loads(json.dumps(loaded.spec.model_dump(mode="json", exclude_unset=True)))
    again = load_checked_spec([launched_spec({"given": given})], planning=True)
    assert again.spec.model_dump() == loaded.spec.model_dump()
    assert again.spec.trainer.given("lr") == 3e-6


def test_a_lock_without_the_spec_that_was_given_says_how_to_resume() -> None:
    with pytest.raises(RunFolderError, match="rlrun launch SPEC --resume"):
        launched_spec({"spec": {}})


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
