import subprocess
import sys

import psutil

from rlrun.runner.engines.process.command_line import die_with_parent

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
        server.wait(30)
        assert not [one for one in psutil.wait_procs(tree, timeout=30)[1] if one.status() != "zombie"]
