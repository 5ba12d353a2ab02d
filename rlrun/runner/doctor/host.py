"""Checks whether this host can run jobs. Each check says what it found, and what to do if that is not enough.

The checks change nothing on the host. torch is imported in a separate process.
"""

import resource
import shutil
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

from rlrun.plugins.rewards.code.sandbox import Limits, MemoryHeldBy, Sandbox, SandboxError
from rlrun.plugins.rollouts.agent.program_sandbox import Kind, problem_of_kind
from rlrun.runner.doctor.check import Check
from rlrun.runner.doctor.installation import (
    ask_torch,
    check_packages,
    check_python,
    check_sglang,
    check_torch_and_gpus,
    check_torchao,
    installed_packages,
)
from rlrun.runner.planning.hardware import GIB, driver_gpus
from rlrun.specs.processor import multiplies_bfloat16

RAY_PORT = 6379
_SANDBOX_CURES = {
    "unshare": "allow user namespaces: sysctl user.max_user_namespaces=10000, on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container --cap-add SYS_ADMIN",
    "mount_setattr": "use Linux 5.12 or newer, which has read-only bind mounts",
    "mount": "on Ubuntu sysctl kernel.apparmor_restrict_unprivileged_userns=0; in a container "
    "--security-opt apparmor=unconfined",
    "seccomp": "use a kernel with CONFIG_SECCOMP_FILTER",
    "system calls": "use a host with x86-64 or aarch64 processors",
}
"""The cure for each word that a problem may contain; the first word that it contains decides."""
OPEN_FILES = 4096
SMALL_DISK, SMALL_SHARED = 20 * GIB, 2 * GIB


def examine_host(folder: Path) -> Iterator[Check]:
    """Yields every check of this host; `folder` is the one for run folders."""
    yield check_python(sys.version_info[:2])
    yield from check_packages(installed_packages())
    if "torch" in installed_packages():
        yield from check_torch_and_gpus(ask_torch(), driver_gpus())
    yield check_sglang(installed_packages().get("sglang"))
    yield check_torchao(installed_packages().get("torchao"))
    yield check_bfloat16(native=multiplies_bfloat16())
    yield check_compiler(shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"))
    yield check_disk(folder, shutil.disk_usage(_existing(folder)).free)
    yield check_shared_memory(shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None)
    yield check_port(RAY_PORT, in_use=_in_use(RAY_PORT))
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield from check_sandbox(*_try_sandbox())
    yield check_agent_sandboxes({kind: problem_of_kind(kind) for kind in get_args(Kind)})


def check_compiler(path: str | None) -> Check:
    """Checks for the compiler that builds rlrun's CPU operators."""
    if path is None:
        cure = "install g++ or clang++: with compiled operators generation on CPUs is several times as fast"
        return Check("C++ compiler", "note", "none: jobs use plain torch operators", cure)
    return Check("C++ compiler", "ok", path)


def check_bfloat16(*, native: bool) -> Check:
    """Checks for instructions for bfloat16, which an unset `dtype` follows in jobs on CPUs."""
    if native:
        found = "the processor has instructions for it: an unset dtype is bfloat16"
        return Check("bfloat16 on CPU", "ok", found)
    found = "the processor has no instructions for it: an unset dtype is float32 in jobs on CPUs"
    cure = "leave `dtype` unset: bfloat16 would be several times slower in jobs on this CPU"
    return Check("bfloat16 on CPU", "note", found, cure)


def check_disk(folder: Path, free: int) -> Check:
    """Checks that the disk has room for checkpoints."""
    found = f"{free / GIB:,.0f} GiB free under {folder}"
    if free < SMALL_DISK:
        cure = "rlrun plan says how much a job needs; `runs_dir` may name another disk"
        return Check("disk", "note", found, cure)
    return Check("disk", "ok", found)


def check_shared_memory(free: int | None) -> Check:
    """Checks /dev/shm, through which weights go from the trainer to the engines."""
    if free is None:
        return Check("/dev/shm", "bad", "does not exist", "weights pass through it: mount a tmpfs there")
    found = f"{free / GIB:,.1f} GiB free"
    if free < SMALL_SHARED:
        cure = "it must hold two copies of the weights: docker run --shm-size=…, or mount a larger tmpfs"
        return Check("/dev/shm", "note", found, cure)
    return Check("/dev/shm", "ok", found)


def check_port(number: int, *, in_use: bool) -> Check:
    """Checks Ray's usual port, which is in use if a Ray cluster runs on this host."""
    if in_use:
        cure = (
            'to join that cluster, set cluster.address = "HOST:6379"; jobs without an address use other ports'
        )
        return Check(f"port {number}", "note", "in use, probably by a Ray cluster", cure)
    return Check(f"port {number}", "ok", "free")


def check_open_files(limit: int) -> Check:
    """Checks the limit of open files; Ray and HTTP connections need many."""
    if 0 <= limit < OPEN_FILES:
        return Check("open files", "note", f"at most {limit}", f"ulimit -n {OPEN_FILES * 16}")
    return Check("open files", "ok", "unlimited" if limit < 0 else f"at most {limit}")


def check_sandbox(problem: str, memory: MemoryHeldBy) -> Iterator[Check]:
    """Reports which limits the sandbox of the reward `code` and the tool `python` can enforce on this host.

    `problem` says why there is no sandbox, and is empty if there is one.
    """
    if problem:
        cures = (cure for part, cure in _SANDBOX_CURES.items() if part in problem)
        cure = next(cures, "it needs Linux 5.12 or newer, as root or with user namespaces (docs/sandbox.md)")
        found = f"the reward code and the tool python are not available: {problem}"
        yield Check("sandbox", "note", found, cure)
        return
    yield Check("sandbox", "ok", "namespaces, read-only mounts, seccomp")
    if memory == "a cgroup":
        yield Check("sandbox memory", "ok", "a cgroup limits all processes of a program together")
    elif memory == "watching":
        found = "no memory cgroup can be created: the memory of a program's processes is summed every 5 ms"
        yield Check("sandbox memory", "note", found, "systemd-run --user --scope rlrun …, or run as root")
    else:
        found = "each process of a program is limited, but not all of them together"
        cure = "use a kernel with CONFIG_PROC_CHILDREN, or memory cgroups"
        yield Check("sandbox memory", "note", found, cure)


def check_agent_sandboxes(problems: Mapping[Kind, str]) -> Check:
    """Reports which sandboxes this host has for the programs of agents. `problems` are empty for those."""
    found = [kind for kind, problem in problems.items() if not problem]
    if found:
        return Check("agent sandboxes", "ok", ", ".join(found))
    cure = f"for agents that run commands of the policy: {problems['bubblewrap']}"
    return Check("agent sandboxes", "note", "none: programs of agents run as the job's user", cure)


def _try_sandbox() -> tuple[str, MemoryHeldBy]:
    try:
        return "", Sandbox(Limits(timeout=10, memory=256)).memory_is_held_by
    except (SandboxError, OSError) as error:
        return str(error), "nothing"


def _in_use(number: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", number)) == 0


def _existing(folder: Path) -> Path:
    """Returns the folder, or its nearest parent that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())
