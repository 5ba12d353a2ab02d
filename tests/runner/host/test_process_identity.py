import os
import subprocess
import sys

import pytest

from rlrun.runner.host import process_identity as owner
from rlrun.runner.host.process_identity import Owner

TELL = """
import sys
from rlrun.runner.host.process_identity import Owner
print(Owner.current().model_dump_json(), flush=True)
"""


def test_a_process_is_known_until_it_ends_though_nobody_has_asked_how() -> None:
    command = [sys.executable, "-c", f"{TELL}sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        one = Owner.model_validate_json(process.stdout.readline())
        assert one.pid == process.pid
        assert one.is_here
        assert one.is_running
        assert not one.model_copy(update={"start_ticks": one.start_ticks + 1}).is_running
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert not one.is_running
    assert not one.is_running


@pytest.mark.parametrize("name", ["boot_id", "pid_namespace"])
def test_a_process_of_another_container_or_boot_is_not_here(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Owner.current()
    monkeypatch.setattr(owner, name, type(getattr(one, name)))
    assert not one.is_here


def test_two_containers_have_two_namespaces() -> None:
    try:
        command = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
        done = subprocess.run(
            [*command, sys.executable, "-c", TELL], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this host gives no namespaces to users")
    other = Owner.model_validate_json(done.stdout)
    assert other.pid < 10
    assert other.boot_id == Owner.current().boot_id
    assert not other.is_here
