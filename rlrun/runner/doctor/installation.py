"""Checks what is installed on this host: Python, packages, torch and its GPUs."""

import json
import re
import subprocess
from collections.abc import Iterator
from importlib import metadata

from rlrun.runner.doctor.check import Check, Verdict
from rlrun.specs.safe_python import own_python

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


def check_python(version: tuple[int, ...]) -> Check:
    """Checks the interpreter's version."""
    running = ".".join(map(str, version))
    if version < (3, 11):
        return Check("Python", "bad", running, "install Python 3.11 or newer, and rlrun in it")
    return Check("Python", "ok", running)


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
        state = (
            "not installed: jobs on GPUs use the native engine, which is slow there, unless they name another"
        )
        return Check("SGLang", "note", state, "pip install 'rlrun[run,sglang]'")
    return Check("SGLang", "ok", f"{version}: jobs on GPUs use it unless they name another engine")


def check_torchao(version: str | None, needed: tuple[str, ...] | None = None) -> Check:
    """Checks whether torchao is installed, in the version that torchtitan's converters need."""
    cure = "pip install 'rlrun[low-precision]'"
    if version is None:
        state = "not installed: only low precision needs it (trainer.precision, optimizers in 8 bits)"
        return Check("torchao", "note", state, cure)
    matches = map(_REQUIREMENT.match, needed or tuple(metadata.requires("rlrun") or ()))
    versions = (match["version"] for match in matches if match and match["extra"] == "low-precision")
    tested = next(versions, None)  # None: rlrun's own metadata is of an older installation
    if tested is not None and version.partition("+")[0] != tested:
        return Check("torchao", "note", f"{version}; tested with {tested}", cure)
    return Check("torchao", "ok", version)


def installed_packages() -> dict[str, str]:
    """Returns the version of each installed distribution by its normalised name."""
    return {
        distribution.name.lower().replace("_", "-"): distribution.version
        for distribution in metadata.distributions()
        if distribution.name
    }


def ask_torch() -> dict[str, object] | str:
    """Returns torch's answers about this host, or the reason why it gave none."""
    try:
        process = subprocess.run(
            own_python("-c", _PROBE), capture_output=True, text=True, timeout=120, check=True
        )
        answer: dict[str, object] = json.loads(process.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        return "no answer within 120 s"
    except (subprocess.CalledProcessError, ValueError, IndexError) as error:
        message = str(getattr(error, "stderr", "") or error).strip()
        return message.splitlines()[-1] if message else "no output"
    return answer


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(digits) for digits in re.findall(r"\d+", version.partition("+")[0])[:4])
