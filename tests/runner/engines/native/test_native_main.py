"""The native engine as a program of its own."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.__main__ import main, read_key
from tests.waiting import PATIENCE


def test_it_serves_until_it_is_told_to_stop(tiny_folder: Path) -> None:
    command = [sys.executable, "-m", "rlrun.runner.engines.native", "--model", str(tiny_folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        line, key = process.stdout.readline(), process.stdout.readline()
        assert line.startswith("serving on http://127.0.0.1:")
        assert key.startswith("its key is ")
        assert asyncio.run(generate(line.split()[-1], key.split()[-1])) == 2
        with pytest.raises(EngineError, match="answered 401: a key is needed"):
            asyncio.run(generate(line.split()[-1], "another"))
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


async def generate(url: str, key: str) -> int:
    async with EngineClient(url, api_key=key) as client:
        request = GenerateRequest("r", np.array([5, 6], np.int32), (1, 2), Sampling(3))
        return len(await client.generate(request))


def test_a_setup_that_cannot_work_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert main(["--model", str(tmp_path)]) == 2
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    assert "it has no config.json" in capsys.readouterr().err


def test_a_key_file_is_made_once_and_is_the_owner_s_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    key = read_key(path)
    assert len(key) == 32
    assert read_key(path) == key
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    with pytest.raises(ValueError, match="other users may read or write"):
        read_key(path)
    path.write_text("\n")
    path.chmod(0o600)
    with pytest.raises(ValueError, match="is empty: delete it"):
        read_key(path)
