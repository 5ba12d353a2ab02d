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

from rlrun.runner.host.cpp_build import find_compiler
from rlrun.runner.trainer.ops import library
from tests.waiting import PATIENCE

HERE = Path(__file__).parent


def test_attention_after_other_onednn_work(tmp_path):
    compiler = find_compiler()
    if compiler is None or not library.load():
        pytest.skip("no C++ compiler")
    counter = tmp_path / "counter.so"
    source = str(HERE / "tile_registers.cpp")
    subprocess.run([compiler, "-std=c++20", "-shared", "-fPIC", source, "-o", str(counter)], check=True)
    done = subprocess.run(
        [sys.executable, str(HERE / "tile_registers_worker.py")],
        env=os.environ | {"LD_PRELOAD": str(counter)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    counted = json.loads(done.stdout)
    assert counted["products"] > 100
    assert counted["unreleased"] == 0
