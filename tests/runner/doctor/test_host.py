"""Each check of the doctor, and that whatever is not well has a cure."""

from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.doctor.check import Check
from rlrun.runner.doctor.host import (
    check_agent_sandboxes,
    check_bfloat16,
    check_compiler,
    check_disk,
    check_open_files,
    check_port,
    check_sandbox,
    check_shared_memory,
    examine_host,
)
from rlrun.runner.doctor.installation import (
    check_packages,
    check_python,
    check_sglang,
    check_torch_and_gpus,
    check_torchao,
)
from rlrun.runner.planning.hardware import GIB

NEEDED = (
    'torch==2.14.1; extra == "run"',
    'ray>=2.50; extra == "run"',
    'mypy>=1.18; extra == "dev"',
    'torchao==0.18.0; extra == "low-precision"',
    "rich>=14",
)
ON_CPU = {"cuda": False, "built": None, "threads": 1, "nccl": None, "gpus": []}
ON_GPU = {"cuda": True, "built": "12.8", "threads": 1, "nccl": [2, 27, 3], "gpus": ["H100", "H100"]}


@pytest.mark.parametrize(
    ("check", "verdict", "words"),
    [
        (check_python((3, 10)), "bad", "3.10"),
        (check_python((3, 12)), "ok", "3.12"),
        (check_sglang(None), "note", "jobs on GPUs use the native engine"),
        (check_sglang("0.5.23"), "ok", "0.5.23"),
        (check_torchao(None, NEEDED), "note", "only low precision needs it"),
        (check_torchao("0.17.0", NEEDED), "note", "0.17.0; tested with 0.18.0"),
        (check_torchao("0.18.0+cpu", NEEDED), "ok", "0.18.0"),
        (check_bfloat16(native=False), "note", "an unset dtype is float32"),
        (check_bfloat16(native=True), "ok", "an unset dtype is bfloat16"),
        (check_compiler(None), "note", "plain torch operators"),
        (check_compiler("/usr/bin/c++"), "ok", "/usr/bin/c++"),
        (check_disk(Path("runs"), 500 * GIB), "ok", "500 GiB free"),
        (check_disk(Path("runs"), GIB), "note", "1 GiB free"),
        (check_shared_memory(None), "bad", "does not exist"),
        (check_shared_memory(64 * 2**20), "note", "0.1 GiB free"),
        (check_shared_memory(50 * GIB), "ok", "50.0 GiB free"),
        (check_port(6379, in_use=True), "note", "in use"),
        (check_port(6379, in_use=False), "ok", "free"),
        (check_open_files(1024), "note", "at most 1024"),
        (check_open_files(-1), "ok", "unlimited"),
    ],
)
def test_checks(check: Check, verdict: str, words: str) -> None:
    assert check.verdict == verdict
    assert words in check.found
    assert check.cure or check.verdict == "ok" or check.subject == "SGLang"


@pytest.mark.parametrize(
    ("problem", "memory", "verdicts", "cure"),
    [
        ("", "a cgroup", ["ok", "ok"], ""),
        ("", "watching", ["ok", "note"], "systemd-run"),
        ("", "nothing", ["ok", "note"], "CONFIG_PROC_CHILDREN"),
        ("jail: unshare: Operation not permitted", "nothing", ["note"], "user.max_user_namespaces"),
        ("jail: mount none: Operation not permitted", "nothing", ["note"], "apparmor"),
        ("jail: mount_setattr: Function not implemented", "nothing", ["note"], "5.12"),
        ("jail: seccomp: Invalid argument", "nothing", ["note"], "CONFIG_SECCOMP_FILTER"),
        ("no table of system calls for riscv64", "nothing", ["note"], "aarch64"),
        ("no space left", "nothing", ["note"], "docs/sandbox.md"),
    ],
)
def test_what_the_sandbox_can_enforce(problem: str, memory: Any, verdicts: list[str], cure: str) -> None:
    checks = list(check_sandbox(problem, memory))
    assert [check.verdict for check in checks] == verdicts
    assert cure in checks[-1].cure


def test_the_sandboxes_of_agents_are_named_or_their_absence() -> None:
    problems: dict[Any, str] = {"bubblewrap": "", "docker": "docker is not installed"}
    assert check_agent_sandboxes(problems).found == "bubblewrap"
    none = check_agent_sandboxes({"bubblewrap": "bwrap is not installed: install the package bubblewrap"})
    assert none.verdict == "note" and "install the package bubblewrap" in none.cure


def test_packages_against_the_tested_versions() -> None:
    installed = {"torch": "2.14.1+cpu", "ray": "2.9.1"}
    torch, ray = check_packages(installed, NEEDED)
    assert (torch.verdict, torch.found) == ("ok", "2.14.1+cpu")
    assert (ray.verdict, ray.cure) == ("bad", "pip install 'ray>=2.50'")
    torch, ray = check_packages({"torch": "2.13.0", "ray": "2.60.0"}, NEEDED)
    assert (torch.verdict, torch.found) == ("note", "2.13.0; tested with 2.14.1")
    assert ray.verdict == "ok"
    assert [each.found for each in check_packages({}, NEEDED)] == ["not installed"] * 2


@pytest.mark.parametrize(
    ("answer", "driver", "verdicts", "words"),
    [
        ("No module named 'torch'", [], ["bad"], "fails to import"),
        (ON_CPU, [], ["note"], "jobs run on the CPU"),
        (ON_CPU, ["H100"], ["bad"], "torch sees none"),
        (ON_GPU, ["H100", "H100"], ["ok", "ok"], "2: H100, CUDA 12.8"),
        (ON_GPU | {"nccl": None}, ["H100"], ["ok", "bad"], "CUDA 12.8"),
    ],
)
def test_torch_against_the_driver(answer: Any, driver: list[str], verdicts: list[str], words: str) -> None:
    found = list(check_torch_and_gpus(answer, driver))
    assert [each.verdict for each in found] == verdicts
    assert words in found[0].found


def test_this_host_is_examined(tmp_path: Path) -> None:
    found = {check.subject: check for check in examine_host(tmp_path / "not" / "there")}
    assert {"Python", "torch", "ray", "GPUs", "SGLang", "disk", "/dev/shm", "open files"} <= found.keys()
    assert found["Python"].verdict == "ok"
