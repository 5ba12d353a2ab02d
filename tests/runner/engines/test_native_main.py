"""The native engine as a program of its own."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlrun.runner.carriers import GenerateRequest, Sampling
from rlrun.runner.engines.client import EngineClient
from rlrun.runner.engines.native.__main__ import main


def test_it_serves_until_it_is_told_to_stop(tiny_folder: Path) -> None:
    command = [sys.executable, "-m", "rlrun.runner.engines.native", "--model", str(tiny_folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("serving on http://127.0.0.1:")
        assert asyncio.run(generate(line.split()[-1])) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


async def generate(url: str) -> int:
    async with EngineClient(url) as client:
        request = GenerateRequest("r", np.array([5, 6], np.int32), (1, 2), Sampling(3))
        return len(await client.generate(request))


def test_a_setup_that_cannot_work_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert main(["--model", str(tmp_path)]) == 2
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert "config.json does not exist" in capsys.readouterr().err
