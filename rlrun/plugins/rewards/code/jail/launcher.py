"""Locks itself in, starts one program there, and watches it; started by rlrun.plugins.rewards.code.jailed.

    sandbox ── control ─▶ launcher ── fork ─▶ init (process 1) ── fork ─▶ program ─▶ its children

`control` brings the settings and the program. When the sandbox closes it, or dies, the launcher kills init.
The kernel then kills all of init's namespace, whatever session, group or parent a process has given itself,
and the launcher ends only when all are gone. When the launcher dies, the kernel kills init.

The program cannot reach either: to it init is process 1, which ignores signals from its own namespace, runs
as another user or hides its memory, and the launcher is in no namespace that the program can see.

Imports are few: json, typing and signal would double the time it takes to start.
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
"""User id that the program believes to have, where user namespaces give it one."""
POLL = 5
"""Milliseconds between two looks at the memory of all processes."""


def main() -> None:
    """Never returns."""
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
    """Eight bytes of length, then a table; ends the process where the sandbox has gone."""
    with os.fdopen(os.dup(control), "rb") as file:
        length = int.from_bytes(file.read(8), "big")
        data = file.read(length)
    if not length or len(data) < length:
        os._exit(kernel.JAIL_FAILED)
    settings: dict[str, Any] = marshal.loads(data)
    return settings


def _enter_namespaces() -> bool:
    """Whether this process is privileged, or else has become so in a user namespace of its own."""
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
    kernel.die_with_parent()
    return False


def _watch(init: int, control: int, memory: int) -> int:
    """Waits until all processes are gone, and kills them when it is time to: the exit status of init.

    `memory`: bytes that they may use together; 0 where a cgroup holds them to it.
    """
    ended = os.pidfd_open(init)
    events = select.poll()
    events.register(ended, select.POLLIN)
    events.register(control, 0)  # a pipe whose writer has gone reports so unasked
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
