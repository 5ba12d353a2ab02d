"""Isolates itself, starts one program, and watches it. `rlrun.plugins.rewards.code.jailed` starts it.

    sandbox ── control ─▶ launcher ── fork ─▶ init (process 1) ── fork ─▶ program ─▶ its children

The pipe `control` carries the settings and the program. When the sandbox closes it, or dies, the launcher
kills init. The kernel then kills every process in init's namespace, whatever its session, process group or
parent, and the launcher ends only after all of them. When the launcher dies, the kernel kills init.

The program can harm neither. In its namespace init is process 1, which ignores signals from inside; init also
runs as another user or hides its memory. The launcher is outside the namespaces that the program can see.

This module imports little: json, typing and signal would double its start-up time.
"""

from __future__ import annotations

import marshal
import os
import select
import sys

from rlrun.plugins.rewards.code.jail import kernel
from rlrun.plugins.rewards.code.jail.init import run_init
from rlrun.plugins.rewards.code.jail.memory import uses_more_than

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

INSIDE = 1000
"""User id that the program sees as its own in a user namespace."""
POLL = 5
"""Milliseconds between two measurements of the memory of all processes."""


def main() -> None:
    """Runs the program, then exits with its status."""
    control, parent = int(sys.argv[1]), int(sys.argv[2])
    kernel.die_with_parent()
    if os.getppid() != parent:
        os._exit(kernel.JAIL_FAILED)
    settings = _read_settings(control)
    settings["privileged"] = _enter_namespaces()
    kernel.hide_memory()
    alive, launcher_alive = os.pipe()
    init = os.fork()
    if not init:
        os.close(launcher_alive)
        run_init(settings, alive)
    for descriptor in (0, 1, alive, *settings["channel"]):
        os.close(descriptor)
    os._exit(_watch(init, control, settings["watched"]))


def _read_settings(control: int) -> dict[str, Any]:
    """Reads eight bytes of length, then the table of settings. Exits if the sandbox has gone."""
    with os.fdopen(os.dup(control), "rb") as file:
        length = int.from_bytes(file.read(8), "big")
        data = file.read(length)
    if not length or len(data) < length:
        os._exit(kernel.JAIL_FAILED)
    settings: dict[str, Any] = marshal.loads(data)
    return settings


def _enter_namespaces() -> bool:
    """Enters new namespaces. Returns True as root, and False if it needed a user namespace for that."""
    spaces = kernel.NEW_PID | kernel.NEW_NET | kernel.NEW_IPC | kernel.NEW_UTS
    user, group = os.geteuid(), os.getegid()
    if user == 0 and kernel.unshare(spaces):
        return True
    if not kernel.unshare(spaces | kernel.NEW_USER):
        kernel.fail("unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{INSIDE} {user} 1"),
        ("gid_map", f"{INSIDE} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
            file.write(text)
    kernel.die_with_parent()  # again: new credentials clear the setting
    return False


def _watch(init: int, control: int, memory: int) -> int:
    """Waits until init and with it all processes have ended, and returns init's exit status.

    Kills init when the control pipe closes, or when its processes together use more than `memory` bytes. 0
    disables that check, for example because a cgroup limits them.
    """
    ended = os.pidfd_open(init)
    events = select.poll()
    events.register(ended, select.POLLIN)
    events.register(control, 0)  # poll always reports that a pipe's writer has gone
    while True:
        ready = dict(events.poll(POLL if memory else None))
        if ended in ready:
            break
        if control in ready:
            events.unregister(control)
            os.kill(init, kernel.SIGKILL)
        elif memory and uses_more_than(memory, init):
            os.kill(init, kernel.SIGKILL)
            os.write(2, f"\nused more than {memory >> 20} MiB of memory\n".encode())
            memory = 0
    status = os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])
    return status if status >= 0 else 128 - status
