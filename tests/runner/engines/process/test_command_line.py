import os
import subprocess
import sys
from pathlib import Path

import psutil

from rlrun.runner.engines.process.command_line import die_with_parent, inherited_variables
from tests.waiting import PATIENCE, wait_for_ends

SERVER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(child.pid, flush=True)
time.sleep(1000)
"""


def test_what_a_server_started_is_killed_with_it() -> None:
    command = die_with_parent([sys.executable, "-c", SERVER])
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        assert server.stdout is not None
        child = psutil.Process(int(server.stdout.readline()))
        tree = psutil.Process(server.pid).children(recursive=True)
        assert child in tree
        server.kill()
        server.wait(PATIENCE)
        wait_for_ends(tree)


def test_a_server_imports_no_module_of_the_current_folder(tmp_path: Path) -> None:
    for name in ("ctypes", "select", "server_module"):
        (tmp_path / f"{name}.py").write_text(f"print('planted {name}')")
    command = die_with_parent([sys.executable, "-m", "server_module"])
    environment = inherited_variables(os.environ)
    server = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (server.stdout, "No module named server_module" in server.stderr) == ("", True)
