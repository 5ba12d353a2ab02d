"""Arguments of an SGLang server in a spec, against the server that is installed for the tests."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.specs.derived.sglang_arguments import cached_names, installed_arguments
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.reading.loading import load_spec
from tests.sglang_cpu.servers import ENVIRONMENT, python

BASE = Path(__file__).parents[1] / "base.toml"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLRUN_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


def spec_file(folder: Path, interpreter: str, arguments: str, keys: str = "") -> Path:
    environment = ", ".join(f"{name} = {json.dumps(value)}" for name, value in ENVIRONMENT.items())
    path = folder / "job.toml"
    path.write_text(
        f'extends = "{BASE}"\n[engine]\ntype = "sglang"\npython = "{interpreter}"\n'
        f"environment = {{ {environment} }}\n{keys}[engine.sglang]\n{arguments}\n"
    )
    return path


def test_an_argument_that_the_server_does_not_have(tmp_path: Path) -> None:
    path = spec_file(tmp_path, python(), "attention_backend = 'triton'\nmem_fraction_statik = 0.7")
    with pytest.raises(SpecError) as caught:
        load_spec([path])
    [problem] = caught.value.problems
    assert (problem.key, problem.line, problem.column) == ("engine.sglang.mem_fraction_statik", 8, 1)
    assert problem.suggestion == "mem_fraction_static"
    assert "has no argument --mem-fraction-statik" in problem.message


def test_an_argument_that_the_router_does_not_have(tmp_path: Path) -> None:
    table = "[engine.sglang_router]\nbalance_abs_threshold = 10\npolici = 'random'"
    with pytest.raises(SpecError) as caught:
        load_spec([spec_file(tmp_path, python(), table, "router = 'sglang-router'\n")])
    [problem] = caught.value.problems
    assert (problem.key, problem.suggestion) == ("engine.sglang_router.polici", "policy")
    assert f"the router of {python()} has no argument --polici" in problem.message


def test_the_names_are_asked_for_once() -> None:
    known = installed_arguments(python(), ENVIRONMENT)
    assert known is not None
    assert {"mem-fraction-static", "dp-size", "enable-memory-saver"} <= set(known)
    # the environment would keep SGLang from importing a second time
    assert installed_arguments(python(), {"PYTHONPATH": ""}) == known


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
