"""Programs of agents in sandboxes: bubblewrap for real if it is installed, others by their command lines."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.authoring.rollout_testing import ScriptedSession
from rlrun.plugins.registry import build
from rlrun.plugins.rollouts.agent import program_sandbox
from rlrun.plugins.rollouts.agent.program_limits import ProgramLimits
from rlrun.plugins.rollouts.agent.program_sandbox import Contained, Program, ProgramSandbox, contained
from rlrun.plugins.types import Row
from tests.plugins.rollouts.test_agent import HI
from tests.plugins.rollouts.test_program_limits import ASK

LIMITS = ProgramLimits(memory=512, processes=64, file=8)
VARIABLES = {"PATH": "/bin", "OPENAI_API_KEY": "secret", "OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}


def started(kind: str, base_url: str = VARIABLES["OPENAI_BASE_URL"], **keys: Any) -> Contained:
    image = {"image": "agents:1"} if kind != "bubblewrap" else {}
    sandbox = ProgramSandbox.model_validate({"type": kind, **image, **keys})
    environment = VARIABLES | {"OPENAI_BASE_URL": base_url}
    return contained(sandbox, Program(["agent", "--fast"], "/tmp/one", environment, LIMITS, "rlrun-1"))


@pytest.mark.parametrize("kind", ["docker", "podman", "gvisor"])
def test_a_container_has_the_limits_and_is_removed_by_name(kind: str) -> None:
    program = started(kind, read_only=("/data",), writable=("/cache",))
    engine = "podman" if kind == "podman" else "docker"
    assert list(program.command)[:7] == [*f"{engine} run --rm --init --interactive --name rlrun-1".split()]
    text = " ".join(program.command)
    for options in (
        "--network host",
        "--memory 512m --memory-swap 512m",
        "--pids-limit 64",
        "--ulimit fsize=8388608 --ulimit core=0",
        "--cap-drop ALL --security-opt no-new-privileges",
        f"--user {os.getuid()}:{os.getgid()}",
        "--mount type=bind,source=/data,destination=/data,ro",
        "--mount type=bind,source=/cache,destination=/cache",
        "--mount type=bind,source=/tmp/one,destination=/tmp/one",
        "--workdir /tmp/one --env HOME=/tmp/one --env OPENAI_API_KEY --env OPENAI_BASE_URL",
    ):
        assert f" {options} " in text
    assert text.endswith(" agents:1 agent --fast")
    assert ("--runtime runsc" in text) == (kind == "gvisor")
    assert "secret" not in text and program.environment["OPENAI_API_KEY"] == "secret"
    assert list(program.clean_up) == [engine, "rm", "--force", "rlrun-1"]


def test_a_container_keeps_a_network_of_its_own_where_the_policy_is_not_on_the_loopback_interface() -> None:
    assert "--network" not in started("docker", "http://172.17.0.1:1/v1").command


def test_apptainer_gets_the_variables_without_those_of_the_host() -> None:
    program = started("apptainer", read_only=("/data",))
    wrapped = 'ulimit -c 0; ulimit -f 16384; exec "$@"'
    assert list(program.command) == [
        *("sh", "-c", wrapped, "sh", "apptainer", "exec", "--containall", "--home", "/tmp/one"),
        *("--pwd", "/tmp/one", "--mount", "type=bind,source=/data,destination=/data,ro"),
        *("agents:1", "agent", "--fast"),
    ]
    assert program.environment["APPTAINERENV_OPENAI_API_KEY"] == "secret"
    assert "APPTAINERENV_PATH" not in program.environment


@pytest.mark.parametrize("kind", ["docker", "podman", "apptainer"])
def test_names_of_mounts_may_have_every_character(kind: str) -> None:
    command = started(kind, writable=('/a b:c,d"e',)).command
    row = command[command.index("--mount") + 1]
    assert next(csv.reader([row])) == ["type=bind", 'source=/a b:c,d"e', 'destination=/a b:c,d"e']


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"type": "docker"}, 'type = "docker" needs an image'),
        ({"type": "bubblewrap", "image": "a"}, 'type = "bubblewrap" has no image'),
        ({"read_only": ["/data"]}, "without a sandbox a program sees all files"),
        ({"type": "bubblewrap", "writable": ["data"]}, "data is not an absolute path"),
        ({"type": "bubblewrap", "writable": ["/tmp", "//"]}, "writable has all files of the host"),
        ({"type": "docker", "image": "--privileged"}, "image"),
        ({"type": "docker", "image": ""}, "image"),
    ],
)
def test_keys_that_do_not_go_together_are_named(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProgramSandbox.model_validate(keys)


def test_a_sandbox_that_the_host_lacks_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program_sandbox.shutil, "which", lambda name: None)
    with pytest.raises(Exception, match="bwrap is not installed: install the package bubblewrap"):
        build("rollouts", "agent", {"command": ["agent"], "sandbox": {"type": "bubblewrap"}})


@pytest.mark.parametrize("key", ["read_only", "writable"])
def test_a_mount_that_does_not_exist_is_named_before_a_program_starts(tmp_path: Path, key: str) -> None:
    sandbox = {"type": "bubblewrap", key: [str(tmp_path / "gone")]}
    with pytest.raises(Exception, match=f"there is no {tmp_path}/gone on this host"):
        build("rollouts", "agent", {"command": ["agent"], "sandbox": sandbox})


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_a_program_of_root_in_bubblewrap_changes_nothing_of_the_host(tmp_path: Path) -> None:
    script = f"""
for folder in / /dev /usr {tmp_path}/shown; do touch $folder/new && echo wrote $folder; done
mount -o remount,rw,bind {tmp_path}/shown && touch {tmp_path}/shown/new && echo mounted
grep -v 0000000000000000 /proc/self/status | grep Cap
for folder in /tmp /dev/shm; do df --output=size --block-size=1M $folder | tail -n 1; done
mktemp > /dev/null && echo made
"""
    (tmp_path / "shown").mkdir()
    (tmp_path / "own").mkdir()
    sandbox = ProgramSandbox(type="bubblewrap", read_only=(str(tmp_path / "shown"),))
    environment = VARIABLES | {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    program = Program(["sh", "-c", script], str(tmp_path / "own"), environment, LIMITS, "rlrun-1")
    begun = contained(sandbox, program)
    ended = subprocess.run(
        begun.command, env=dict(begun.environment), capture_output=True, text=True, check=False
    )
    assert ended.stdout.split() == ["8", "8", "made"]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
async def test_a_program_in_bubblewrap_asks_the_policy_and_sees_only_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    (tmp_path / "shown").mkdir()
    program = f"""
ask()
open("mine", "w").write("x")
def fails(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
print(json.dumps({{
    "reward": 1.0,
    "home": os.environ["HOME"] == os.getcwd(),
    "secret": fails(lambda: open({str(tmp_path / "secret")!r})),
    "shown": os.path.isdir({str(tmp_path / "shown")!r}),
    "write": fails(lambda: open({str(tmp_path / "shown" / "new")!r}, "w")),
    "big": fails(lambda: open("big", "wb").write(bytes(3 << 20))),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
}}))
"""
    keys = {"type": "bubblewrap", "read_only": [str(tmp_path / "shown")]}
    command = [sys.executable, "-c", ASK + program]
    rollout = build("rollouts", "agent", {"command": command, "sandbox": keys, "limits": {"file": 2}})
    try:
        [trajectory] = await rollout.run(ScriptedSession(["4"], row=Row("0", [HI])))
    finally:
        await rollout.close()
    seen = {name: trajectory.info[name] for name in ("home", "secret", "shown", "write", "big")}
    assert seen == {
        "home": True,
        "secret": "FileNotFoundError",
        "shown": True,
        "write": "OSError",
        "big": "OSError",
    }
    assert trajectory.info["processes"] <= 3 and trajectory.info["reward"] == 1.0
