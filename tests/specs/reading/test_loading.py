"""Composition, overrides, paths, references and provenance, on files written for each test."""

from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.reading.loading import LoadedSpec, load_spec

BASE = Path(__file__).parents[1] / "base.toml"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def problems(*paths: Path, overrides: tuple[str, ...] = ()) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_checked_spec(paths, overrides)
    return [f"{Path(each.place).name}: {each.headline}" for each in caught.value.problems]


def load(*paths: Path, overrides: tuple[str, ...] = (), profiles: tuple[str, ...] = ()) -> LoadedSpec:
    return load_checked_spec(paths, overrides, profiles)


def test_a_valid_spec_has_absolute_paths() -> None:
    spec = load(BASE).spec
    assert spec.model.path == str(BASE.parent / "tiny")
    assert spec.data.params == {"path": str(BASE.parent / "rows.jsonl")}


def test_extends_merges_tables_and_replaces_arrays(tmp_path: Path) -> None:
    one = f'extends = "{BASE}"\n[trainer]\nlr = 1e-3\neps = 1e-6\n[rollout]\nstop = ["a"]\n'
    write(tmp_path, "a/one.toml", one)
    write(tmp_path, "a/two.toml", "[trainer]\nlr = 2e-3\n")
    text = 'extends = ["a/one.toml", "a/two.toml"]\n[rollout]\nstop = ["b", "c"]\n'
    top = write(tmp_path, "top.toml", text)
    loaded = load(top)
    assert (loaded.spec.trainer.lr, loaded.spec.trainer.eps, loaded.spec.trainer.steps) == (2e-3, 1e-6, 10)
    assert loaded.spec.rollout.stop == ("b", "c")
    assert Path(loaded.origin("trainer.lr")).name == "two.toml:2"
    assert Path(loaded.origin("trainer.eps")).name == "one.toml:4"
    assert Path(loaded.origin("rollout.stop.1")).name == "top.toml:3"
    assert loaded.origin("trainer.seed") == "default"


TABLES = """
[trainer.lora]
rank = 8
[reference]
path = "tiny"
[[filters]]
type = "nonzero_std"
[engine.sglang]
context_length = 9
"""


def test_false_removes_a_table_of_a_base(tmp_path: Path) -> None:
    full = write(
        tmp_path, "full.toml", f'extends = "{BASE}"\n{TABLES.replace("tiny", str(BASE.parent / "tiny"))}'
    )
    removed = "filters = false\nreference = false\n[trainer]\nlora = false\n[engine]\nsglang = false\n"
    top = write(tmp_path, "top.toml", f'extends = "full.toml"\n{removed}')
    settings = ("filters=false", "reference=false", "trainer.lora=false", "engine.sglang=false")
    profile = write(
        tmp_path,
        "profile.toml",
        'extends = "full.toml"\n[profiles.plain]\nfilters = false\nreference = false\n'
        "[profiles.plain.trainer]\nlora = false\n[profiles.plain.engine]\nsglang = false\n",
    )
    for loaded in (load(top), load(full, overrides=settings), load(profile, profiles=("plain",))):
        spec = loaded.spec
        assert (spec.trainer.lora, spec.filters, spec.engine.sglang) == (None, (), {})
        assert not spec.reference.model_fields_set
        given, base = (each.model_dump(mode="json", exclude_unset=True) for each in (spec, load(BASE).spec))
        assert given == base
    again = write(tmp_path, "again.toml", 'extends = "top.toml"\n[trainer.lora]\nrank = 4\n')
    assert load(again).spec.trainer.lora.rank == 4  # nothing of the base's table returns


def test_false_in_place_of_a_table_needs_no_base(tmp_path: Path) -> None:
    path = write(
        tmp_path, "one.toml", f'extends = "{BASE}"\n[trainer]\nlora = "${{var:lora}}"\n[vars]\nlora = false\n'
    )
    assert load(path).spec.trainer.lora is None


def test_false_in_a_profile_that_is_not_chosen(tmp_path: Path) -> None:
    text = f'extends = "{BASE}"\n[profiles.plain]\nfilters = false\n[profiles.plain.trainer]\nlora = false\n'
    load(write(tmp_path, "one.toml", text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model = false", "model"),
        ("[trainer]\nlora = true", "trainer.lora: must be a table, found true"),
        ("[trainer]\nlr = false", "trainer.lr: must be a number, found false"),
    ],
)
def test_false_elsewhere_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, "one.toml", f'extends = "{BASE}"\n{text}\n')
    assert any(message in problem for problem in problems(path)), problems(path)


def test_problems_name_the_file_of_the_chain(tmp_path: Path) -> None:
    write(tmp_path, "low.toml", f'extends = "{BASE}"\n[trainer]\nlr = -1\n')
    top = write(tmp_path, "top.toml", 'extends = "low.toml"\n\n[rollout]\ntop_p = 2\n')
    assert problems(top) == [
        "low.toml:3:6: trainer.lr: must be greater than 0, found -1",
        "top.toml:4:9: rollout.top_p: must be at most 1, found 2",
    ]


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    first = write(tmp_path, "first.toml", 'extends = "second.toml"\n')
    write(tmp_path, "second.toml", 'extends = "first.toml"\n')
    circle = "first.toml -> second.toml -> first.toml"
    assert problems(first) == [f"second.toml:1:11: extends: a file extends itself: {circle}"]


def test_a_file_may_be_reached_twice(tmp_path: Path) -> None:
    write(tmp_path, "left.toml", f'extends = "{BASE}"\n')
    write(tmp_path, "right.toml", f'extends = "{BASE}"\n')
    top = write(tmp_path, "top.toml", 'extends = ["left.toml", "right.toml"]\n')
    assert load(top).spec.trainer.steps == 10


def test_later_files_win(tmp_path: Path) -> None:
    over = write(tmp_path, "over.toml", "[trainer]\nsteps = 3\n")
    assert load(BASE, over).spec.trainer.steps == 3
    assert load(over, BASE).spec.trainer.steps == 10


def test_paths_are_relative_to_the_file_that_sets_them(tmp_path: Path) -> None:
    write(tmp_path, "data/rows.jsonl", "{}\n")
    write(tmp_path, "data/data.toml", f'extends = "{BASE}"\n[data]\npath = "rows.jsonl@[:1]"\n')
    top = write(tmp_path, "top.toml", 'extends = "data/data.toml"\n')
    assert load(top).spec.data.params["path"] == f"{tmp_path}/data/rows.jsonl@[:1]"


def test_an_override_is_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "mine.jsonl", "{}\n")
    monkeypatch.chdir(tmp_path)
    loaded = load(BASE, overrides=("data.path=mine.jsonl",))
    assert loaded.spec.data.params["path"] == f"{tmp_path}/mine.jsonl"
    assert loaded.origin("data.path") == "--set data.path:1"


@pytest.mark.parametrize("path", ["Qwen/Qwen3-0.6B", "gpt2"])
def test_a_path_that_is_not_a_folder_may_be_a_hub_id(path: str) -> None:
    assert load(BASE, overrides=(f"model.path={path}",)).spec.model.path == path


@pytest.mark.parametrize("path", ["package:nothing", "../nothing", "a/b/c"])
def test_what_is_neither_folder_nor_hub_id_is_refused(path: str) -> None:
    assert "neither a Hugging Face id nor a folder" in problems(BASE, overrides=(f"model.path={path}",))[0]


@pytest.mark.parametrize(
    ("override", "value"),
    [
        ("trainer.lr=3e-5", 3e-5),
        ("trainer.lr = 3e-5", 3e-5),
        ("rollout.stop=['a', \"b\"]", ("a", "b")),
        ("trainer.parallel={fsdp = 2}", 2),
        ("name=my-run", "my-run"),
        ('name="my-run"', "my-run"),
        ("rewards.0.weight=0.5", 0.5),
        ("deterministic=true", True),
    ],
)
def test_overrides_take_toml_values_and_bare_strings(override: str, value: Any) -> None:
    found: Any = load(BASE, overrides=(override,)).spec
    for part in override.partition("=")[0].strip().split("."):
        found = found[int(part)] if part.isdecimal() else getattr(found, part)
    assert (found.fsdp if override.startswith("trainer.parallel") else found) == value


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("lr", "--set: 'lr' has no key or no value"),
        ("=3", "--set: '=3' has no key or no value"),
        ("a..b=3", "--set a..b: 'a..b' is not a key path"),
        ("extends=x.toml", "--set extends: `extends` cannot be set here"),
        (
            "rewards.1.key=1",
            "--set rewards.1.key:1:9: rewards.1: rewards has no element 1: it has 1, counted from 0",
        ),
        ("trainer.lr=abc", '--set trainer.lr:1:12: trainer.lr: must be a number, found the string "abc"'),
        ("trainer.lrr=1", "--set trainer.lrr:1:9: trainer.lrr: unknown key"),
    ],
)
def test_wrong_overrides_are_told_like_anything_else(override: str, expected: str) -> None:
    assert problems(BASE, overrides=(override,)) == [expected]


def test_another_type_takes_the_place_of_the_whole_table(tmp_path: Path) -> None:
    text = f'extends = "{BASE}"\n[algorithm]\nclip = 0.3\n[data]\nshuffle = false\n'
    base = write(tmp_path, "base.toml", text)
    text = 'extends = "base.toml"\n[algorithm]\ntype = "grpo"\nclip_high = 0.4\n'
    same = write(tmp_path, "same.toml", text)
    assert load(same).spec.algorithm.params == {"clip": 0.3, "clip_high": 0.4}
    other = write(tmp_path, "other.toml", 'extends = "base.toml"\n[algorithm]\ntype = "rloo"\n')
    assert load(other).spec.algorithm.params == {}
    data = load(base, overrides=("data={type = 'reasoning_gym', task = 'chain_sum'}",)).spec.data
    assert data.params == {"task": "chain_sum"}
    assert data.shuffle


def test_references_stay_references(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLRUN_TEST_KEY", raising=False)
    loaded = load(BASE, overrides=("data.label_key='${env:RLRUN_TEST_KEY}'",))
    assert loaded.spec.data.params["label_key"] == "${env:RLRUN_TEST_KEY}"
    assert [each.headline for each in loaded.unset_references()] == [
        "data.label_key: the environment variable RLRUN_TEST_KEY is not set"
    ]
    assert loaded.unset_references(["RLRUN_TEST_KEY"]) == []
    monkeypatch.setenv("RLRUN_TEST_KEY", "answer")
    assert loaded.unset_references() == []


def test_a_problem_found_later_has_its_place() -> None:
    problem = load(BASE).problem("data.path", "has no rows", "add some")
    assert (problem.line, problem.column, problem.cure) == (6, 8, "add some")
    assert str(problem).endswith('6 | path = "rows.jsonl"\n    |        ^^^^^^^^^^^^\n  add some')


def test_carets_stand_under_the_value_after_tabs(tmp_path: Path) -> None:
    path = write(tmp_path, "tabs.toml", f'extends = "{BASE}"\n[trainer]\n\tlr\t= -1\n')
    with pytest.raises(SpecError) as caught:
        load_checked_spec([path])
    assert str(caught.value).splitlines()[1:3] == ["  3 | \tlr\t= -1", "    | \t  \t  ^^"]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"\xef\xbb\xbf[trainer]\nlr = -1\n", "2:6: trainer.lr: must be greater than 0, found -1"),
        (b"[trainer]\r\n\r\nlr = -1\r\n", "3:6: trainer.lr: must be greater than 0, found -1"),
    ],
)
def test_marks_and_line_ends_of_other_systems(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "odd.toml"
    path.write_bytes(content)
    assert problems(BASE, path) == [f"odd.toml:{expected}"]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes('name = "é"\n'.encode("latin-1"))
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    assert problems(latin, folder, tmp_path / "lattin.toml") == [
        "latin.toml: not UTF-8 text: byte 8 is 0xe9",
        "folder.toml: cannot be read: Is a directory",
        "lattin.toml: there is no such file",
    ]


def test_an_unreadable_file_does_not_make_its_keys_missing(tmp_path: Path) -> None:
    top = write(tmp_path, "top.toml", 'extends = "gone.toml"\n[trainer]\nstesp = 1\n')
    assert [each.split(": ", 1)[1] for each in problems(top)] == [
        f"extends: there is no file {tmp_path}/gone.toml",
        "trainer.stesp: unknown key",
    ]


def test_plugins_are_taken_on_trust_without_a_check(tmp_path: Path) -> None:
    text = '[model]\npath = "gpt2"\n[data]\ntype = "of-another-package"\nx = 1\n[trainer]\nsteps = 1\n'
    assert load_spec([write(tmp_path, "job.toml", text)]).spec.data.params == {"x": 1}


VARIABLES = """[vars]
size = 16
folder = "words"
[rollout]
batch_size = "${var:size}"
stop = ["${var:folder}/${var:size}", "${var:end=}!"]
samples_per_prompt = "${var:n=4}"
"""


def test_variables_keep_their_type_and_stand_in_strings(tmp_path: Path) -> None:
    loaded = load(BASE, write(tmp_path, "job.toml", VARIABLES), overrides=("vars.folder=other",))
    rollout = loaded.spec.rollout
    assert (rollout.batch_size, rollout.samples_per_prompt) == (16, 4)
    assert rollout.stop == ("other/16", "!")
    assert [Path(each).name for each in loaded.origin("rollout.batch_size").split(", size from ")] == [
        "job.toml:5", "job.toml:2",
    ]  # fmt: skip


def test_a_variable_may_hold_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLRUN_TEST_KEY", raising=False)
    text = '[vars]\nkey = "${env:RLRUN_TEST_KEY}"\n[data]\nlabel_key = "${var:key}"\n'
    loaded = load(BASE, write(tmp_path, "job.toml", text))
    assert loaded.spec.data.params["label_key"] == "${env:RLRUN_TEST_KEY}"
    assert [each.key for each in loaded.unset_references()] == ["data.label_key"]


PROFILES = """[vars]
size = 16
[rollout]
batch_size = "${var:size}"
[profiles.large.vars]
size = 64
[profiles.debug.trainer]
steps = 1
[profiles.debug.rewards.0]
weight = 2.0
"""


@pytest.mark.parametrize(
    ("profiles", "steps", "size", "weight"),
    [((), 10, 16, 1.0), (("debug",), 1, 16, 2.0), (("large", "debug"), 1, 64, 2.0)],
)
def test_profiles_are_laid_on_top(
    tmp_path: Path, profiles: tuple[str, ...], steps: int, size: int, weight: float
) -> None:
    loaded = load(BASE, write(tmp_path, "job.toml", PROFILES), profiles=profiles)
    found = loaded.spec
    assert (found.trainer.steps, found.rollout.batch_size, found.rewards[0].weight) == (steps, size, weight)
    if "debug" in profiles:
        assert Path(loaded.origin("trainer.steps")).name == "job.toml:8"


def test_an_override_is_on_top_of_profiles(tmp_path: Path) -> None:
    path = write(tmp_path, "job.toml", PROFILES)
    spec = load(BASE, path, overrides=("trainer.steps=3",), profiles=("debug",)).spec
    assert spec.trainer.steps == 3


def test_an_unknown_profile(tmp_path: Path) -> None:
    path = write(tmp_path, "job.toml", PROFILES)
    with pytest.raises(SpecError, match='there is no profile "lrage"') as caught:
        load(BASE, path, profiles=("lrage",))
    assert caught.value.problems[0].suggestion == "large"


@pytest.mark.parametrize(
    ("override", "cure"),
    [
        ("lr=1", "write --set trainer.lr=1"),
        ("rollout.lr = 1e-5", "write --set trainer.lr=1e-5"),
        ("trainer.seed=3", "write --set seed=3"),
        ("trainer.lrr=1", "did you mean `lr`?"),
    ],
)
def test_an_override_of_a_key_in_the_wrong_table_is_told_how_to_write_it(override: str, cure: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(BASE, overrides=(override,))
    assert [problem.cure for problem in caught.value.problems] == [cure]


@pytest.mark.parametrize("key", ["trainer.steps", "rollout.max_response_tokens"])
@pytest.mark.parametrize("number", [2**63, 10**30])
def test_an_integer_beyond_64_bits_is_refused(key: str, number: int) -> None:
    assert any(
        f"{key}: must fit in 64 bits" in problem for problem in problems(BASE, overrides=(f"{key}={number}",))
    )


def test_an_integer_of_64_bits_is_accepted() -> None:
    assert load(BASE, overrides=(f"trainer.steps={2**63 - 1}",)).spec.trainer.steps == 2**63 - 1


def test_an_integer_that_is_wrong_for_another_reason_too_is_reported_once() -> None:
    assert len(problems(BASE, overrides=(f"seed={2**64}",))) == 1
