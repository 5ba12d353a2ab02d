"""What a job's processes hold when memory is scarce, and where it is told."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.runner.contracts.errors import JobError
from rlrun.runner.host.failures import ProcessFailure
from rlrun.runner.host.memory import (
    GroupMemory,
    Memory,
    MemoryWatch,
    describe,
    host_memory,
    job_memory,
    largest_gpu_memory,
    used_memory,
)
from rlrun.specs.problems.codes import Code

GIB = 2**30
GROUPS = [
    GroupMemory("programs of the agent", 267, 16 * GIB),
    GroupMemory("engine", 1, 3 * GIB),
    GroupMemory("driver", 1, GIB // 2),
]
TOLD = (
    "memory was scarce (23.0 GiB of 24.0 GiB used): programs of the agent 16.0 GiB in 267 processes, "
    "engine 3.0 GiB, driver 0.5 GiB"
)
OUTPUT = "101, 2048\n102, 512\n101, 1024\n103, [N/A]\n"


def watch(used: int) -> MemoryWatch:
    memory = MemoryWatch(lambda: GROUPS)
    memory.look_once(Memory(used * GIB, 24 * GIB))
    return memory


def test_groups_are_told_with_what_they_hold() -> None:
    assert describe(Memory(23 * GIB, 24 * GIB), GROUPS) == TOLD


@pytest.mark.parametrize(
    ("used", "error", "message"),
    [
        pytest.param(23, "engine 0 died: killed", f"engine 0 died: killed; {TOLD}", id="scarce"),
        pytest.param(12, "engine 0 died: killed", "engine 0 died: killed", id="enough"),
    ],
)
def test_a_failure_says_what_held_the_memory(used: int, error: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(JobError) as raised, watch(used).named_in_failures():
        raise ProcessFailure("engine 0", "died", "killed", tmp_path / "engine-0.log")
    assert str(raised.value) == message
    assert raised.value.code == Code.PROCESS
    assert "engine-0.log" in raised.value.details


def test_a_memory_error_of_the_driver_is_told() -> None:
    with pytest.raises(JobError, match="MemoryError; memory was scarce"), watch(23).named_in_failures():
        raise MemoryError
    with pytest.raises(ValueError, match=r"^wrong$"), watch(23).named_in_failures():
        raise ValueError("wrong")


def test_processes_belong_to_the_group_of_the_process_that_started_them() -> None:
    inner = [sys.executable, "-S", "-c", "print('ready', flush=True); input()"]
    outer = [sys.executable, "-S", "-c", f"import subprocess; subprocess.run({inner!r})"]
    with subprocess.Popen(outer, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None and program.stdin is not None
        assert program.stdout.readline() == "ready\n"
        groups = {group.name: group for group in job_memory({program.pid: "programs"}, "others")}
        assert groups["programs"].processes == 2
        assert groups["programs"].resident > 2**20
        assert groups["driver"].processes == 1
        program.stdin.write("\n")


@pytest.mark.parametrize(
    ("limit", "is_container"), [("1048576", True), (str(1 << 60), False), ("max", False)]
)
def test_the_limit_of_a_container_counts(tmp_path: Path, limit: str, is_container: bool) -> None:
    (tmp_path / "memory.max").write_text(limit)
    (tmp_path / "memory.current").write_text("1000000")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 400000\n")
    memory = host_memory(tmp_path)
    if is_container:
        assert memory == Memory(600000, 1048576)
    else:
        assert memory.total == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        assert 0 < memory.share < 1


def test_a_processs_memory_is_summed_over_its_gpus() -> None:
    assert used_memory(OUTPUT) == {101: 3072 * 2**20, 102: 512 * 2**20}
    assert used_memory("No running processes found\n") == {}


def test_the_largest_process_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text(f"#!/bin/sh\ncat <<'END'\n{OUTPUT}END\n")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert largest_gpu_memory({102, 103}) == 512 * 2**20
    assert largest_gpu_memory({101, 102}) == 3072 * 2**20
    assert largest_gpu_memory({7}) == 0.0


def test_without_a_driver_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert largest_gpu_memory({1}) == 0.0
