"""On processors with fewer vector instructions, engine and trainer still compute the same bits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.runner.host.cpp_build import find_compiler
from rlrun.runner.host.instruction_sets import INSTRUCTION_SETS, runs
from rlrun.specs.processor import PRETENDED_SET

ROOT = Path(__file__).parents[3]
KERNELS = Path(__file__).parent
CPU_OPS = ROOT / "tests" / "runner" / "trainer" / "ops"


def run_tests(instruction_set: str, *arguments: object) -> None:
    """Runs tests in a process that pretends to have the instruction set."""
    if find_compiler() is None or not runs(instruction_set):
        pytest.skip("no C++ compiler, or this processor is older")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, arguments)]
    environment = os.environ | {PRETENDED_SET: instruction_set}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("instruction_set", sorted(INSTRUCTION_SETS.keys() - {"native"}))
def test_all_operators(instruction_set: str) -> None:
    run_tests(instruction_set, KERNELS, CPU_OPS, f"--ignore={__file__}")
