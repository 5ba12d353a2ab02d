"""The sandbox against programs that attack it, run as root and as another user."""

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.rewards.sandbox_attacks import ATTACKS, MEMORY
from tests.waiting import PATIENCE

RUNNER = Path(__file__).with_name("sandbox_attacks.py")
ROOT = Path(__file__).parents[3]
NOBODY = 65534
OWN_PROCESSES = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
"""The runner gets a process namespace of its own, in which every process is one that an attack has left."""
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all")

PROBE = "import os, sys, rlrun.plugins.rewards.code.sandbox; sys.exit(not os.access(sys.executable, os.X_OK))"


def python_for_nobody() -> str | None:
    """A Python that another user may run and that can read rlrun; it need not have any package."""
    for path in (sys.executable, "/usr/bin/python3"):
        done = subprocess.run(
            [*AS_NOBODY, path, "-c", PROBE],
            capture_output=True,
            env={"PYTHONPATH": str(ROOT)},
            cwd="/",
            check=False,
        )
        if done.returncode == 0:
            return path
    return None


def run(user: str, *options: str) -> list[dict[str, Any]]:
    """What the runner printed; skips where this machine does not let it run so."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        pytest.skip("needs Linux and util-linux")
    command: tuple[str, ...] = OWN_PROCESSES
    if user == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if os.geteuid() != 0:
        command = ("unshare", "--user", "--map-current-user", *OWN_PROCESSES[1:])
    python: str | None = sys.executable
    if user == "user" and os.geteuid() == 0:
        command, python = (*command, *AS_NOBODY), python_for_nobody()
    if python is None:
        pytest.skip("another user may read no Python of 3.11 or newer, or not this folder")
    done = subprocess.run(
        [*command, python, str(RUNNER), *options],
        input=json.dumps(list(ATTACKS)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        cwd="/",
        check=False,
    )
    if "user namespaces" in done.stderr or "unshare failed" in done.stderr:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@functools.cache
def attacked(user: str, *options: str) -> dict[str, dict[str, Any]]:
    """All answers by attack; the one without a name is about all."""
    return {answer.get("name", ""): answer for answer in run(user, *options)}


def all_is_well(user: str, *options: str) -> None:
    """Asserts that no attack escaped, and that whoever took more than its memory died of it.

    A cgroup stops an attack before it has twice its memory. A watcher kills it when it looks again: what it
    has taken until then depends on when the kernel lets the watcher run: no figure holds on a busy machine.
    """
    answers = attacked(user, *options)
    assert answers.pop("")["left"] == []
    assert answers.keys() == ATTACKS.keys()
    for name, answer in answers.items():
        assert "ESCAPED" not in answer["output"], answer
        assert not any(word in answer["problem"] for word in ("jail:", "NameError", "SyntaxError")), answer
        assert answer["memory"] <= 2 * MEMORY or "used more than" in answer["problem"], (name, answer)


@pytest.mark.parametrize("user", [pytest.param("root", marks=pytest.mark.slow), "user"])
def test_no_attack_outlives_its_deadline_takes_more_or_reaches_out(user: str) -> None:
    assert len(ATTACKS) >= 140
    all_is_well(user)


@pytest.mark.slow
def test_root_without_cgroups_watches_memory() -> None:
    all_is_well("root", "--watched")


@pytest.mark.parametrize("user", ["root", "user"])
def test_a_worker_killed_at_any_moment_leaves_no_program(user: str) -> None:
    assert run(user, "--kill") == [{"left": []}]
