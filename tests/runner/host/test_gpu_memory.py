"""What is read from the driver's list of processes."""

from pathlib import Path

import pytest

from rlrun.runner.host.gpu_memory import largest_gpu_memory, used_memory

OUTPUT = "101, 2048\n102, 512\n101, 1024\n103, [N/A]\n"


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
