"""Checks whether this host can run jobs. Each check says what it found, and what to do if that is not enough.

The checks change nothing on the host. torch is imported in a separate process.
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
    "mount_setattr": "use Linux 5.12 or newer, which has read-only bind mounts",
    "mount": "on Ubuntu sysctl kernel.apparmor_restrict_unprivileged_userns=0; in a container "
    "--security-opt apparmor=unconfined",
    "seccomp": "use a kernel with CONFIG_SECCOMP_FILTER",
    "system calls": "use a host with x86-64 or aarch64 processors",
}
"""The cure for each word that a problem may contain; the first word that it contains decides."""
OPEN_FILES = 4096
SMALL_DISK, SMALL_SHARED = 20 * GIB, 2 * GIB
_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)\s*(?P<sign>==|>=)\s*(?P<version>[\w.]+)\s*;.*extra == .(?P<extra>[\w-]+)"
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
    """The result of one check, which is a line of the doctor's report."""

    subject: str
    verdict: Verdict
    found: str
    cure: str = ""


def examine_host(folder: Path) -> Iterator[Check]:
    """Yields every check of this host; `folder` is the one for run folders."""
    yield check_python(sys.version_info[:2])
    yield from check_packages(_installed())
    if "torch" in _installed():
        yield from check_torch_and_gpus(ask_torch(), driver_gpus())
    yield check_sglang(_installed().get("sglang"))
    yield check_torchao(_installed().get("torchao"))
    yield check_compiler(shutil.which("c++") or shutil.which("g++") or shutil.which("clang++"))
    yield check_disk(folder, shutil.disk_usage(_existing(folder)).free)
    yield check_shared_memory(shutil.disk_usage("/dev/shm").free if Path("/dev/shm").is_dir() else None)
    yield check_port(RAY_PORT, in_use=_in_use(RAY_PORT))
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    yield from check_sandbox(*_try_sandbox())


def check_python(version: tuple[int, ...]) -> Check:
    """Checks the interpreter's version."""
    found = ".".join(map(str, version))
    if version < (3, 11):
        return Check("Python", "bad", found, "install Python 3.11 or newer, and rlrun in it")
    return Check("Python", "ok", found)


def check_packages(installed: dict[str, str], needed: tuple[str, ...] | None = None) -> Iterator[Check]:
    """Compares the installed packages with the versions that running a job requires."""
    for requirement in needed if needed is not None else tuple(metadata.requires("rlrun") or ()):
        match = _REQUIREMENT.match(requirement)
        if match is None or match["extra"] != "run":
            continue
        name, sign, required = match["name"], match["sign"], match["version"]
        version = installed.get(name.lower().replace("_", "-"))
        cure = f"pip install '{name}{sign}{required}'"
        if version is None:
            yield Check(name, "bad", "not installed", cure)
        elif sign == "==" and version.partition("+")[0] != required:
            yield Check(name, "note", f"{version}; tested with {required}", cure)
        elif sign == ">=" and _numbers(version) < _numbers(required):
            yield Check(name, "bad", f"{version}; at least {required} is required", cure)
        else:
            yield Check(name, "ok", version)


def check_torch_and_gpus(answer: dict[str, object] | str, driver: list[str]) -> Iterator[Check]:
    """Compares the GPUs that torch sees with those that the driver sees.

    `answer` is what torch reports, or the reason why it could not be imported. `driver` has the driver's
    names.
    """
    if isinstance(answer, str):
        yield Check(
            "torch", "bad", f"fails to import: {answer}", "pip install --force-reinstall 'rlrun[run]'"
        )
        return
    gpus = answer["gpus"]
    assert isinstance(gpus, list)
    if driver and not gpus:
        cure = (
            f"this torch was built for CUDA {answer['built']}: update the driver, or check "
            "CUDA_VISIBLE_DEVICES"
            if answer["built"]
            else "this torch was built without CUDA: install the CUDA wheel"
        )
        yield Check("GPUs", "bad", f"the driver has {len(driver)} ({driver[0]}) and torch sees none", cure)
    elif gpus:
        yield Check("GPUs", "ok", f"{len(gpus)}: {', '.join(sorted(set(gpus)))}, CUDA {answer['built']}")
        nccl = answer["nccl"]
        version = ".".join(map(str, nccl)) if isinstance(nccl, list) else "none"
        verdict: Verdict = "ok" if nccl else "bad"
        yield Check("NCCL", verdict, version, "" if nccl else "install a torch wheel with NCCL")
    else:
        yield Check("GPUs", "note", "none: jobs run on the CPU", "set cluster.gpus_per_node = 0")


def check_sglang(version: str | None) -> Check:
    """Checks whether SGLang is installed; the native engine does not need it."""
    if version is None:
        found = (
            "not installed: jobs on GPUs use the native engine, which is slow there, unless they name another"
        )
        return Check("SGLang", "note", found, "pip install 'rlrun[run,sglang]'")
    return Check("SGLang", "ok", f"{version}: jobs on GPUs use it unless they name another engine")


def check_torchao(version: str | None, needed: tuple[str, ...] | None = None) -> Check:
    """Checks whether torchao is installed, in the version that torchtitan's converters need."""
    cure = "pip install 'rlrun[low-precision]'"
    if version is None:
        found = "not installed: only low precision needs it (trainer.precision, optimizers in 8 bits)"
        return Check("torchao", "note", found, cure)
    matches = map(_REQUIREMENT.match, needed or tuple(metadata.requires("rlrun") or ()))
    versions = (match["version"] for match in matches if match and match["extra"] == "low-precision")
    tested = next(versions, None)  # None: rlrun's own metadata is of an older installation
    if tested is not None and version.partition("+")[0] != tested:
        return Check("torchao", "note", f"{version}; tested with {tested}", cure)
    return Check("torchao", "ok", version)


def check_compiler(path: str | None) -> Check:
    """Checks for the compiler that builds rlrun's CPU operators."""
    if path is None:
        cure = "install g++ or clang++: with compiled operators generation on CPUs is several times as fast"
        return Check("C++ compiler", "note", "none: jobs use plain torch operators", cure)
    return Check("C++ compiler", "ok", path)


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


def _try_sandbox() -> tuple[str, MemoryHeldBy]:
    try:
        return "", Sandbox(Limits(10.0, 256, 8, 4, 1000)).memory_is_held_by
    except (SandboxError, OSError) as error:
        return str(error), "nothing"


def _installed() -> dict[str, str]:
    return {
        distribution.name.lower().replace("_", "-"): distribution.version
        for distribution in metadata.distributions()
        if distribution.name
    }


def ask_torch() -> dict[str, object] | str:
    """Returns torch's answers about this host, or the reason why it gave none."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120, check=True
        )
        answer: dict[str, object] = json.loads(process.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return "no answer within 120 s"
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        message = str(getattr(error, "stderr", "") or error).strip()
        return message.splitlines()[-1] if message else "no output"
    return answer


def _in_use(number: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", number)) == 0


def _existing(folder: Path) -> Path:
    """Returns the folder, or its nearest parent that exists."""
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version.partition("+")[0])[:4])
