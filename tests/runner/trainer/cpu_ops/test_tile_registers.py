"""Threads give up AMX's tile registers after attention, whatever CPU the test runs on.

Without that, the second call after any other oneDNN work dies of SIGILL on a CPU with AMX; the worker does
that work, so that the test shows it there. On other CPUs a preloaded library counts the threads that did not
release them.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from rlrun.runner.host.cpp_build import find_compiler
from rlrun.runner.trainer.cpu_ops import library

HERE = Path(__file__).parent


def test_attention_after_other_onednn_work(tmp_path):
    compiler = find_compiler()
    if compiler is None or not library.load() or not library.serves_attention(torch.bfloat16):
        pytest.skip("no C++ compiler, or no bfloat16 kernels on this CPU")
    counter = tmp_path / "counter.so"
    source = str(HERE / "tile_registers.cpp")
    subprocess.run([compiler, "-std=c++20", "-shared", "-fPIC", source, "-o", str(counter)], check=True)
    done = subprocess.run(
        [sys.executable, str(HERE / "tile_registers_worker.py")],
        env=os.environ | {"LD_PRELOAD": str(counter)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    counted = json.loads(done.stdout)
    assert counted["products"] > 0
    assert counted["unreleased"] == 0
