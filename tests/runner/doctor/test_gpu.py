"""The measurements in processes of their own, on the CPU; and hosts whose GPUs cannot be used."""

from pathlib import Path

import pytest

from rlrun.runner.doctor import gpu


def test_another_process_reads_a_shared_buffer() -> None:
    answer = gpu.measure("shared_buffer")
    assert not isinstance(answer, str)
    assert answer["written"] == answer["read"] == [[1.5, 2.0], [2.5, 3.0]]


@pytest.mark.slow
def test_ranks_join_and_sum() -> None:
    answer = gpu.measure_collectives(2)
    assert not isinstance(answer, str)
    assert answer["bus"] > 0


def test_a_measurement_that_fails_or_hangs_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.measure("temperature") == "KeyError: 'temperature'"
    monkeypatch.setattr(gpu, "_SECONDS", 0.01)
    assert gpu.measure("peers") == "no answer within 0 s"


def test_a_driver_whose_gpus_torch_does_not_see(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\ncase $1 in *name*) echo NVIDIA H100;; *) echo 580.95;; esac\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    driver, gpus = gpu.examine_gpus(None)
    assert (driver.verdict, driver.found) == ("ok", "580.95; 1 GPU(s): NVIDIA H100")
    assert (gpus.verdict, gpus.found) == ("bad", "the driver has 1 (NVIDIA H100) and torch sees none")
    assert "CUDA_VISIBLE_DEVICES" in gpus.cure
