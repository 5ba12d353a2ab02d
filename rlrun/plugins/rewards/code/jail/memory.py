"""Measures the memory of all processes of a jail, for hosts where no cgroup can limit it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

BUFFER = 212_992
"""Bytes that the kernel may hold for one descriptor: the send buffer of a socket. A pipe holds less."""
_QUICK = ("RssAnon:", "RssShmem:", "VmSwap:")
_EXACT = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")


def can_be_watched() -> bool:
    """Returns whether this kernel lists the children of a process (CONFIG_PROC_CHILDREN)."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")  # noqa: PTH110


def uses_more_than(limit: int, init: int) -> bool:
    """Returns whether the processes under `init` together use more than `limit` bytes.

    The sum contains memory without a file behind it, resident or swapped out, and a full buffer for every
    descriptor. The quick sum counts pages shared after a fork more than once, so only the exact sum, which
    is slower to read, decides. A program of one process has only the limit of its address space.
    """
    return _sum(init, _quick) > limit and _sum(init, _exact) > limit


def together_use_more_than(limit: int, processes: list[int]) -> bool:
    """Returns whether these processes together use more than `limit` bytes of memory without a file behind
    it, resident or swapped out. As above, pages that they share are counted once, except those of a process
    that forbids to read its maps (PR_SET_DUMPABLE), and could hide its memory otherwise.
    """
    return _total(processes, _quick) > limit and _total(processes, _exact_if_allowed) > limit


def _total(processes: list[int], measure: Callable[[int], int]) -> int:
    total = 0
    for process in processes:
        try:
            total += measure(process)
        except OSError:  # the process has ended
            continue
    return total


def _sum(init: int, measure: Callable[[int], int]) -> int:
    total, process_count, waiting = 0, 0, _children(init)
    while waiting:
        process = waiting.pop()
        children = _children(process)
        waiting += children
        process_count += 1
        try:
            if not _lends_its_memory(process, children):
                total += measure(process) + BUFFER * len(os.listdir(f"/proc/{process}/fd"))  # noqa: PTH208
        except OSError:  # the process has ended
            continue
    return total if process_count > 1 else 0


def _children(process: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{process}/task"):  # noqa: PTH208
            with open(f"/proc/{process}/task/{thread}/children", "rb") as file:  # noqa: PTH123
                found += map(int, file.read().split())
    except OSError:  # the process has ended
        pass
    return found


def _lends_its_memory(process: int, children: list[int]) -> bool:
    """Returns whether a process waits in vfork for a child, which uses the same memory until it calls exec.

    Counting both would count the memory twice.
    """
    if not children:
        return False
    state, size = _lines(process, "State:", "VmSize:")
    return "D" in state and any(_lines(child, "VmSize:") == [size] for child in children)


def _lines(process: int, *names: str) -> list[str]:
    with open(f"/proc/{process}/status") as file:  # noqa: PTH123
        found = [line for line in file if line.startswith(names)]
    return found if len(found) == len(names) else [""] * len(names)  # a zombie has no memory


def _quick(process: int) -> int:
    return _kibibytes(f"/proc/{process}/status", _QUICK)


def _exact(process: int) -> int:
    return _kibibytes(f"/proc/{process}/smaps_rollup", _EXACT)


def _exact_if_allowed(process: int) -> int:
    try:
        return _exact(process)
    except PermissionError:
        return _quick(process)


def _kibibytes(path: str, names: tuple[str, ...]) -> int:
    """Returns the sum of the named lines in bytes; the kernel writes KiB."""
    with open(path) as file:  # noqa: PTH123
        return sum(int(line.split()[1]) for line in file if line.startswith(names)) * 1024
