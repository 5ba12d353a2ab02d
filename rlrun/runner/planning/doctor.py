"""Whether this host can run jobs: each thing found, whether it will do, and the cure where it won't.

Looks, and changes nothing. What would import torch runs in a process of its own.
"""

import json
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from rlrun.plugins.rewards.code.sandbox import Limits, MemoryHeldBy, Sandbox, SandboxError
from rlrun.runner.planning.hardware import GIB, driver_gpus

Verdict = Literal["ok", "note", "bad"]
RAY_PORT = 6379
_SANDBOX_CURES = {
    "unshare": "allow user namespaces: sysctl user.max_user_namespaces=10000, on Ubuntu also "
    "kernel.apparmor_restrict_unprivileged_userns=0; in a container --cap-add SYS_ADMIN",
    "mount_setattr": "read-only mounts need Linux 5.12",
    "mount": "on Ubuntu sysctl kernel.apparmor_restrict_unprivileged_userns=0; in a container "
    "--security-opt apparmor=unconfined",
    "seccomp": "a kernel with CONFIG_SECCOMP_FILTER",
    "system calls": "a host with x86-64 or aarch64 processors",
}
"""Cures by a part of the problem, the first that fits."""
OPEN_FILES = 4096
SMALL_DISK, SMALL_SHARED = 20 * GIB, 2 * GIB
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?P<sign>==|>=)\s*(?P<version>[\w.]+)\s*;.*extra == .(?P<extra>\w+)"
)
_PROBE = """
import json, torch
cuda = torch.cuda.is_available()
print(json.dumps({"cuda": cuda, "built": torch.version.cuda, "threads": torch.get_num_threads(),
 "nccl": list(torch.cuda.nccl.version()) if cuda else None,
 "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]}))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's report."""

    subject: str
    verdict: Verdict
    found: str
    cure: str = ""


def examine(folder: Path) -> Iterator[Check]:
    """Every check of this host; `folder` is where runs would go."""
    yield python(sys.version_info[:2])
    yield from packages(_installed())
    if "torch" in _installed():
        yield from torch_and_gpus(_ask_torch(), driver_gpus())
    yield sglang(_installed().get("sglang"))
    yield compiler(shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"))
    yield disk(folder, shutil.disk_usage(_existing(folder)).free)
    yield shared_memory(shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None)
    yield port(RAY_PORT, in_use=_in_use(RAY_PORT))
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield from sandbox(*_try_sandbox())


def python(version: tuple[int, ...]) -> Check:
    """The interpreter."""
    found = ".".join(map(str, version))
    if version < (3, 11):
        return Check("Python", "bad", found, "install Python 3.11 or newer, and rlrun in it")
    return Check("Python", "ok", found)


def packages(installed: dict[str, str], needed: tuple[str, ...] | None = None) -> Iterator[Check]:
    """What running jobs needs, against the versions that the project is tested with."""
    for requirement in needed if needed is not None else tuple(metadata.requires("rlrun") or ()):
        found = _REQUIREMENT.match(requirement)
        if found is None or found["extra"] != "run":
            continue
        name, sign, wanted = found["name"], found["sign"], found["version"]
        have = installed.get(name.lower().replace("_", "-"))
        cure = f"pip install '{name}{sign}{wanted}'"
        if have is None:
            yield Check(name, "bad", "not installed", cure)
        elif sign == "==" and have.partition("+")[0] != wanted:
            yield Check(name, "note", f"{have}; tested with {wanted}", cure)
        elif sign == ">=" and _numbers(have) < _numbers(wanted):
            yield Check(name, "bad", f"{have}; at least {wanted} is needed", cure)
        else:
            yield Check(name, "ok", have)


def torch_and_gpus(answer: dict[str, object] | str, driver: list[str]) -> Iterator[Check]:
    """What torch sees, against what the driver sees; `answer` is text where torch could not be asked."""
    if isinstance(answer, str):
        yield Check(
            "torch", "bad", f"fails to import: {answer}", "pip install --force-reinstall 'rlrun[run]'"
        )
        return
    gpus = answer["gpus"]
    assert isinstance(gpus, list)
    if driver and not gpus:
        cure = (
            f"this torch was built for CUDA {answer['built']}: update the driver, or see CUDA_VISIBLE_DEVICES"
            if answer["built"]
            else "this torch was built without CUDA: install the CUDA wheel"
        )
        yield Check("GPUs", "bad", f"the driver has {len(driver)} ({driver[0]}), torch sees none", cure)
    elif gpus:
        yield Check("GPUs", "ok", f"{len(gpus)}: {', '.join(sorted(set(gpus)))}, CUDA {answer['built']}")
        nccl = answer["nccl"]
        version = ".".join(map(str, nccl)) if isinstance(nccl, list) else "none"
        verdict: Verdict = "ok" if nccl else "bad"
        yield Check("NCCL", verdict, version, "" if nccl else "install a torch wheel with NCCL")
    else:
        yield Check("GPUs", "note", "none: jobs run on the CPU", "set cluster.gpus_per_node = 0")


def sglang(version: str | None) -> Check:
    """The other engine."""
    if version is None:
        return Check("SGLang", "note", "not installed here: the native engine runs without it")
    return Check("SGLang", "ok", version)


def compiler(path: str | None) -> Check:
    """For the CPU's own operators."""
    if path is None:
        cure = "install g++ or clang++: on CPUs it makes generation several times as fast"
        return Check("C++ compiler", "note", "none: plain torch operators", cure)
    return Check("C++ compiler", "ok", path)


def disk(folder: Path, free: int) -> Check:
    """Room for checkpoints."""
    found = f"{free / GIB:,.0f} GiB free under {folder}"
    if free < SMALL_DISK:
        cure = "rlrun plan says how much a job needs; `runs_dir` may lie elsewhere"
        return Check("disk", "note", found, cure)
    return Check("disk", "ok", found)


def shared_memory(free: int | None) -> Check:
    """Weights go from trainer to engines by way of /dev/shm."""
    if free is None:
        return Check("/dev/shm", "bad", "not there", "weights pass through it: mount a tmpfs")
    found = f"{free / GIB:,.1f} GiB free"
    if free < SMALL_SHARED:
        cure = "two copies of the weights must fit: docker run --shm-size=…, or mount a larger tmpfs"
        return Check("/dev/shm", "note", found, cure)
    return Check("/dev/shm", "ok", found)


def port(number: int, *, in_use: bool) -> Check:
    """Ray's own port: one that is taken is another cluster."""
    if in_use:
        cure = 'to join that cluster: cluster.address = "HOST:6379"; jobs without an address use other ports'
        return Check(f"port {number}", "note", "in use: a Ray cluster, perhaps", cure)
    return Check(f"port {number}", "ok", "free")


def open_files(limit: int) -> Check:
    """Ray and HTTP connections take many."""
    if 0 <= limit < OPEN_FILES:
        return Check("open files", "note", f"at most {limit}", f"ulimit -n {OPEN_FILES * 16}")
    return Check("open files", "ok", "unlimited" if limit < 0 else f"at most {limit}")


def sandbox(problem: str, memory: MemoryHeldBy) -> Iterator[Check]:
    """What the reward `code` and the tool `python` can enforce here; `problem`: why nothing, or empty."""
    if problem:
        cures = (cure for part, cure in _SANDBOX_CURES.items() if part in problem)
        cure = next(cures, "it needs Linux 5.12 or newer, as root or with user namespaces (docs/sandbox.md)")
        yield Check("sandbox", "note", f"no code reward and no python tool: {problem}", cure)
        return
    yield Check("sandbox", "ok", "namespaces, read-only mounts, seccomp")
    if memory == "a cgroup":
        yield Check("sandbox memory", "ok", "a cgroup holds all processes of a program")
    elif memory == "watching":
        found = "no memory cgroup can be made here: the processes of a program are summed every 5 ms"
        yield Check("sandbox memory", "note", found, "systemd-run --user --scope rlrun …, or run as root")
    else:
        found = "each process of a program is limited, all of them together are not"
        yield Check("sandbox memory", "note", found, "a kernel with CONFIG_PROC_CHILDREN, or memory cgroups")


def _try_sandbox() -> tuple[str, MemoryHeldBy]:
    try:
        return "", Sandbox(Limits(10.0, 256, 8, 4, 1000)).memory_is_held_by
    except (SandboxError, OSError) as error:
        return str(error), "nothing"


def _installed() -> dict[str, str]:
    return {
        (each.name or "").lower().replace("_", "-"): each.version
        for each in metadata.distributions()
        if each.name
    }


def _ask_torch() -> dict[str, object] | str:
    """torch's own answer, or why there is none."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=True
        )
        answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return "no answer within 120 s"
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        written = getattr(error, "stderr", "") or str(error)
        return str(written).strip().splitlines()[-1] if str(written).strip() else "no output"
    return answer


def _in_use(number: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", number)) == 0


def _existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return next(each for each in (folder.absolute(), *folder.absolute().parents) if each.is_dir())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0])[:4])
