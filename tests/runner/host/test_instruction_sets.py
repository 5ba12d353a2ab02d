"""Which instructions a process may use: this processor's, or those that RLRUN_CPU_ISA names."""

import os
import subprocess
import sys

import pytest

from rlrun.runner.host import cpp_build, instruction_sets
from rlrun.specs.processor import PRETENDED_SET

FLAGS = ["sse4_2", "avx2"]
"""A processor without AVX-512."""


@pytest.fixture(autouse=True)
def _processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PRETENDED_SET, raising=False)
    monkeypatch.setattr(instruction_sets, "cpu_flags", lambda: FLAGS)


def test_by_default_the_processor_is_not_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    before = dict(os.environ)
    instruction_sets.limit_libraries()
    assert dict(os.environ) == before
    assert instruction_sets.compiler_flag() == "-march=native"


@pytest.mark.parametrize(
    ("name", "flag", "torch_name", "onednn_name"),
    [("avx2", "-march=x86-64-v3", "avx2", "AVX2"), ("plain", "-march=x86-64-v2", "default", "SSE41")],
)
def test_an_older_set_is_in_force_everywhere(
    name: str, flag: str, torch_name: str, onednn_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PRETENDED_SET, name)
    instruction_sets.limit_libraries()
    assert instruction_sets.compiler_flag() == flag
    assert (os.environ["ATEN_CPU_CAPABILITY"], os.environ["ONEDNN_MAX_CPU_ISA"]) == (torch_name, onednn_name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("avx512", "RLRUN_CPU_ISA=avx512: this processor has no avx512f; choose an older set"),
        ("mmx", "RLRUN_CPU_ISA=mmx: choose one of native, avx512, avx2, plain, or unset it"),
    ],
)
def test_a_set_that_cannot_run_is_refused(name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRETENDED_SET, name)
    with pytest.raises(ValueError, match=message):
        instruction_sets.limit_libraries()


def test_each_set_has_libraries_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = cpp_build.find_compiler()
    if compiler is None:
        pytest.skip("no C++ compiler")
    keys = []
    for name in ("native", "avx2", "plain"):
        monkeypatch.setenv(PRETENDED_SET, name)
        keys.append(cpp_build._key(cpp_build.OPERATORS, compiler))
    assert len(set(keys)) == 3


def test_torch_of_a_child_process_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PRETENDED_SET, "plain")
    instruction_sets.limit_libraries()
    code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert printed.strip() == "DEFAULT"
