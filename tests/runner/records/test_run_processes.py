"""The processes of a run are found by the logs that they write to."""

import asyncio
import subprocess
import sys
from pathlib import Path

from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.run_processes import read_processes
from tests.waiting import wait_until

ANSWERING = """
import sys
from rlrun.runner.host.stacks import write_when_asked
write_when_asked()
def compute():
    print("ready", file=sys.stderr, flush=True)
    sys.stdin.read()
compute()
"""
SILENT = "import sys; print('ready', file=sys.stderr, flush=True); sys.stdin.read()"


def start(program: str, log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as file:
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=file)
    wait_until(lambda: "ready" in log.read_text(), "the process", log.read_text)
    return process


def test_each_process_says_where_it_is_and_none_is_harmed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.logs.mkdir()
    (run.logs / "trainer-1.log").write_text("of a rank that has ended")
    with (
        start(ANSWERING, run.logs / "trainer-0.log") as rank,
        start(SILENT, run.logs / "engine-0.log") as server,
    ):
        engine, trainer = asyncio.run(read_processes(run))
        assert (engine.log, engine.pid) == ("engine-0", server.pid)
        assert engine.where == "its process does not write its stack"
        assert (trainer.log, trainer.pid) == ("trainer-0", rank.pid)
        assert trainer.where == "it is in compute (<string>:7)"
        assert trainer.memory > 1 << 20
        assert rank.poll() is server.poll() is None
        for process in (rank, server):
            assert process.stdin is not None
            process.stdin.close()
    assert asyncio.run(read_processes(run)) == []
