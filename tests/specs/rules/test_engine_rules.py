"""Arguments of an SGLang server in a spec, against the server that is installed for the tests."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.specs.derived.sglang_arguments import cached_names, installed_arguments, why_not_importable
from rlrun.specs.local_code import ALLOW_LOCAL, is_own_interpreter
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.reading.loading import load_spec
from tests.sglang_cpu.servers import ENVIRONMENT, python

BASE = Path(__file__).parents[1] / "base.toml"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The user's own variables: a cache, what SGLang needs on this machine, and leave to ask interpreters."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLRUN_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setenv(ALLOW_LOCAL, "1")
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        yield


def spec_file(folder: Path, interpreter: str, arguments: str, keys: str = "") -> Path:
    path = folder / "job.toml"
    path.write_text(
        f'extends = "{BASE}"\n[engine]\ntype = "sglang"\npython = "{interpreter}"\n'
        f"{keys}[engine.sglang]\n{arguments}\n"
    )
    return path


def test_an_argument_that_the_server_does_not_have(tmp_path: Path) -> None:
    path = spec_file(tmp_path, python(), "attention_backend = 'triton'\nmem_fraction_statik = 0.7")
    with pytest.raises(SpecError) as caught:
        load_spec([path])
    [problem] = caught.value.problems
    assert (problem.key, problem.line, problem.column) == ("engine.sglang.mem_fraction_statik", 7, 1)
    assert problem.suggestion == "mem_fraction_static"
    assert "has no argument --mem-fraction-statik" in problem.message


def test_an_argument_that_the_router_does_not_have(tmp_path: Path) -> None:
    table = "[engine.sglang_router]\nbalance_abs_threshold = 10\npolici = 'random'"
    with pytest.raises(SpecError) as caught:
        load_spec([spec_file(tmp_path, python(), table, "router = 'sglang-router'\n")])
    [problem] = caught.value.problems
    assert (problem.key, problem.suggestion) == ("engine.sglang_router.polici", "policy")
    assert f"the router of {python()} has no argument --polici" in problem.message


def test_the_names_are_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = installed_arguments(python())
    assert known is not None
    assert {"mem-fraction-static", "dp-size", "enable-memory-saver"} <= set(known)
    monkeypatch.delenv("PYTHONPATH")  # SGLang cannot be imported a second time
    assert installed_arguments(python()) == known


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("exit 1", "sglang is not installed"),
        (
            'case "$2" in *metadata*) echo "1.0 /sglang";; *) echo "ImportError: no cuda" >&2; exit 1;; esac',
            "sglang is installed and does not import (ImportError: no cuda)",
        ),
        ('case "$2" in *metadata*) echo "1.0 /sglang";; *) echo \'["mem-fraction"]\';; esac', None),
    ],
    ids=["absent", "broken", "whole"],
)
def test_why_a_server_cannot_be_started(tmp_path: Path, body: str, reason: str | None) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\n{body}\n")
    interpreter.chmod(0o755)
    assert why_not_importable(str(interpreter)) == reason


def test_a_host_without_the_server_checks_no_names(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    interpreter.write_text("#!/bin/sh\nexit 1\n")
    interpreter.chmod(0o755)
    loaded = load_spec([spec_file(tmp_path, str(interpreter), "whatever = 1")])
    assert loaded.spec.engine.sglang == {"whatever": 1}


@pytest.mark.parametrize("text", ['["tp-size", "dp-s', "{}", "[1]", "", "null", "[" * 100_000])
def test_a_broken_cache_is_asked_for_again(text: str, tmp_path: Path) -> None:
    kept = tmp_path / "sglang.json"
    assert cached_names(kept) is None
    kept.write_text(text)
    assert cached_names(kept) is None
    kept.write_text('["tp-size"]')
    assert cached_names(kept) == ["tp-size"]


HOSTILE = """#!/bin/sh
touch "{ran}"
echo '["whatever"]'
"""


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """A file that exists once `./x`, the interpreter that a spec names, or a module beside it, has run."""
    (tmp_path / "x").write_text(HOSTILE.format(ran=tmp_path / "ran"))
    (tmp_path / "x").chmod(0o755)
    for name in ("sitecustomize", "argparse", "json"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    return tmp_path / "ran"


SERVERS = """extends = "{base}"
[engine]
type = "sglang"
router = "sglang-router"
{setting}
[engine.sglang]
whatever = 1
[engine.sglang_router]
whatever = 1
[[engines]]
name = "judge"
type = "sglang"
path = "tiny"
count = 1
{setting}
[engines.sglang]
whatever = 1
"""


def servers(folder: Path, setting: str) -> Path:
    """A spec whose servers, the policy's and named ones, have arguments."""
    shutil.copytree(BASE.parent / "tiny", folder / "tiny")
    path = folder / "job.toml"
    path.write_text(SERVERS.format(base=BASE, setting=setting))
    return path


@pytest.mark.parametrize("planning", [True, False])
def test_a_spec_that_is_read_runs_no_interpreter_that_it_names(
    planning: bool, tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOW_LOCAL)
    spec = servers(tmp_path, 'python = "./x"')
    loaded = load_spec([spec], planning=planning)
    assert not ran.exists()
    warned = {problem.key: problem for problem in loaded.warnings()}
    assert {"engine.sglang", "engine.sglang_router", "engines.0.sglang"} <= warned.keys()
    assert f"would run {tmp_path / 'x'}" in warned["engine.sglang"].message
    assert "--allow-local-plugins" in (warned["engine.sglang"].cure or "")
    monkeypatch.setenv(ALLOW_LOCAL, "1")
    assert "engine.sglang" not in {problem.key for problem in load_spec([spec]).warnings()}
    assert ran.exists()


def test_variables_of_a_spec_do_not_reach_the_interpreter_that_is_asked(
    tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = str(tmp_path)
    environment = f'{{ PYTHONPATH = "{folder}", LD_PRELOAD = "{folder}/x", PYTHONHOME = "{folder}" }}'
    load_spec([servers(tmp_path, f"environment = {environment}")])
    assert not ran.exists()


def test_arguments_that_rlrun_sets_are_refused_without_asking(
    tmp_path: Path, ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ALLOW_LOCAL)
    with pytest.raises(SpecError, match="is set by rlrun"):
        load_spec([spec_file(tmp_path, "./x", "port = 1")])
    assert not ran.exists()


def test_an_interpreter_of_another_environment_is_not_the_own_one(tmp_path: Path) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    assert not is_own_interpreter(str(link))
    assert is_own_interpreter(sys.executable)


def test_elastic_groups_are_refused_once(tmp_path: Path) -> None:
    """A cure of the number of engines would lead to another mistake."""
    groups = "min_count = 1\ngroups = [{ count = 1 }, { count = 1 }]\n"
    with pytest.raises(SpecError) as caught:
        load_spec([spec_file(tmp_path, python(), "", groups)])
    messages = [problem.message for problem in caught.value.problems if "min_count" in problem.key]
    assert messages and all("engine.count" not in message for message in messages)
