"""The measurements in processes of their own, on the CPU; and hosts whose GPUs cannot be used."""

from pathlib import Path
from typing import Any

import pytest

from rlrun.runner.doctor import gpu
from rlrun.runner.doctor.check import Check
from rlrun.runner.doctor.gpu import (
    check_collectives,
    check_driver,
    check_figure,
    check_peers,
    check_sglang_start,
    check_shared_memory_of_gpus,
    check_speed,
)
from rlrun.runner.planning.hardware import GPUS

H100 = GPUS["H100-80GB"]
HEALTHY = {"flops": 798e12, "within": 3.0e12, "to_device": 55e9, "to_host": 53e9}
"""What an H100 with PCIe 5 reaches."""


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


@pytest.mark.parametrize(
    ("check", "verdict", "words"),
    [
        (check_driver([], ""), "bad", "no GPU"),
        (check_driver(["NVIDIA H100", "NVIDIA H100"], "580.95"), "ok", "580.95; 2 GPU(s): NVIDIA H100"),
        (check_figure("x", 798e12, 989e12, "TFLOP/s", "cure"), "ok", "798 TFLOP/s, 81% of 989"),
        (check_figure("x", 400e12, 989e12, "TFLOP/s", "cure"), "note", "40% of 989"),
        (check_figure("x", 100e12, 989e12, "TFLOP/s", "cure"), "bad", "10% of 989"),
        (check_figure("x", 3e12, None, "GB/s", "cure"), "note", "3,000 GB/s"),
        (check_peers({"without_access": []}, 8), "ok", "between all 8 GPUs"),
        (check_peers({"without_access": []}, 1), "ok", "one GPU"),
        (check_peers({"without_access": [[0, 1], [1, 0]]}, 2), "note", "2 pairs without it, as 0 -> 1"),
        (check_peers("CUDA error: unknown error", 2), "bad", "unknown error"),
        (check_shared_memory_of_gpus({"written": [[1.5]], "read": [[1.5]]}), "ok", "reads what"),
        (check_shared_memory_of_gpus({"written": [[2.5]], "read": [[1.5]]}), "bad", "instead of [[2.5]]"),
        (check_shared_memory_of_gpus("invalid device context"), "bad", "invalid device context"),
        (check_collectives({"bus": 0.0}, 1, "2.28.9", H100), "ok", "2.28.9 starts"),
        (check_collectives({"bus": 360e9}, 8, "2.28.9", H100), "ok", "8 GPUs: 360 GB/s, 80% of 450"),
        (check_collectives({"bus": 20e9}, 8, "2.28.9", H100), "note", "4% of 450"),
        (check_collectives("no answer within 120 s", 8, "2.28.9", H100), "bad", "no answer"),
        (check_sglang_start({"seconds": 41.2}), "ok", "after 41 s"),
        (check_sglang_start("the SGLang server ended (exit code 1)"), "bad", "ended"),
    ],
)  # fmt: skip
def test_verdicts(check: Check, verdict: str, words: str) -> None:
    assert check.verdict == verdict
    assert words in check.found
    assert bool(check.cure) == (verdict != "ok")


@pytest.mark.parametrize(
    ("answer", "gpu", "verdicts"),
    [
        (HEALTHY, H100, ["ok"] * 4),
        (HEALTHY | {"flops": 150e12}, H100, ["bad", "ok", "ok", "ok"]),
        (HEALTHY | {"to_host": 6e9}, H100, ["ok", "ok", "ok", "note"]),
        (HEALTHY, None, ["note", "note", "ok", "ok"]),
        ("CUDA error: out of memory", H100, ["bad"]),
    ],
    ids=["healthy", "throttled", "a narrow slot", "an unknown GPU", "an unusable GPU"],
)
def test_speed_of_one_gpu(answer: Any, gpu: Any, verdicts: list[str]) -> None:
    checks = list(check_speed(3, answer, gpu))
    assert [check.verdict for check in checks] == verdicts
    assert all(check.subject.startswith("GPU 3") for check in checks)
