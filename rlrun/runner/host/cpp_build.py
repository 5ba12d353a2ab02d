"""Compiles C++ operators for this machine's CPU once, and loads them into torch.

A source file registers its operators with TORCH_LIBRARY. The library is cached under a hash of everything
that its code depends on: the source, the headers beside it, torch's version, the flags, and all macros that
the compiler predefines (its version and the instructions that it may use), so that different machines can
share a home folder.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rlrun.models.cache import cache_folder, check_private, private_folder
from rlrun.runner.host.instruction_sets import compiler_flag

_RUNNER = Path(__file__).parents[1]
OPERATORS = _RUNNER / "kernels" / "operators.cpp"

_FLAGS = (
    "-O3",
    "-std=c++20",
    "-fopenmp",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wno-psabi",
)
_COMPILE_SECONDS = 600.0
_FOLDER = "operators"
"""The folder of the libraries in the cache."""

_logger = logging.getLogger(__name__)


@cache
def load_operators(source: Path) -> bool:
    """Makes the operators of `source` available in `torch.ops`; if that fails, logs why and returns False.

    RLRUN_NO_COMPILER=1 disables compiled operators; RLRUN_CACHE replaces the cache folder ~/.cache/rlrun.
    """
    compiler = find_compiler()
    if compiler is None:
        _logger.info("%s runs as plain torch operators: no C++ compiler, or RLRUN_NO_COMPILER=1", source)
        return False
    import torch

    try:
        library = _library(source, compiler)
        torch.ops.load_library(library)
    except (OSError, subprocess.SubprocessError, TimeoutError) as error:
        _logger.warning("%s runs as plain torch operators: %s", source, _reason(error))
        return False
    return True


def is_built(source: Path) -> bool:
    """Whether `source` needs no compilation: its library is cached, or this machine has no compiler."""
    compiler = find_compiler()
    try:
        return compiler is None or _library_path(source, compiler).exists()
    except (OSError, subprocess.SubprocessError):  # the process that loads the operators reports the error
        return True


def find_compiler() -> str | None:
    """Returns CXX, or the first of c++, g++ and clang++ in PATH; None if there is none or it is disabled."""
    if os.environ.get("RLRUN_NO_COMPILER") == "1":
        return None
    return os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def _library(source: Path, compiler: str) -> Path:
    """Returns the compiled library of `source`, from the cache or compiled now."""
    library = _library_path(source, compiler)
    private_folder(_FOLDER)
    if not library.exists():
        with _locked(library.with_suffix(".lock")):
            if not library.exists():  # another process may have compiled it meanwhile
                _remove_unfinished(library)
                _compile(source, compiler, library)
    check_private(library)
    return library


def _remove_unfinished(library: Path) -> None:
    """Removes the files of processes that were killed while they compiled. The caller holds the lock."""
    for path in library.parent.glob(f"{library.stem}.*.tmp"):
        path.unlink(missing_ok=True)


def _library_path(source: Path, compiler: str) -> Path:
    """Returns the path of the library of `source`, which may not exist yet."""
    return cache_folder() / _FOLDER / f"{source.stem}-{_key(source, compiler)}.so"


def _torch_folder() -> Path:
    """Returns the folder of torch without importing it, which would take seconds."""
    spec = find_spec("torch")
    assert spec is not None, "operators are compiled only where torch is installed"
    assert spec.origin is not None, "torch has an __init__.py"
    return Path(spec.origin).parent


def _flags() -> tuple[str, ...]:
    return (*_FLAGS, compiler_flag())


def _key(source: Path, compiler: str) -> str:
    macros = subprocess.run(
        [compiler, *_flags(), "-dM", "-E", "-x", "c++", os.devnull],
        check=True,
        capture_output=True,
        timeout=60,
    ).stdout
    headers = sorted(source.parent.glob("*.h"))
    dependencies = (
        *(file.read_bytes() for file in (source, *headers)),
        (_torch_folder() / "version.py").read_bytes(),
        " ".join(_flags()).encode(),
        macros,
    )
    return hashlib.sha256(b"\0".join(dependencies)).hexdigest()[:16]


def _compile(source: Path, compiler: str, library: Path) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f"{library.stem}.", suffix=".tmp", dir=library.parent)
    os.close(descriptor)
    unfinished = Path(name)
    started = time.monotonic()
    command = [compiler, *_flags(), "-shared", "-fPIC", str(source), "-o", str(unfinished)]
    torch = _torch_folder()
    command += [f"-isystem{torch / 'include'}", f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_SECONDS)
        unfinished.chmod(0o700)  # linkers give a group what the umask leaves it
        unfinished.replace(library)
    finally:
        unfinished.unlink(missing_ok=True)
    _logger.info("compiled %s in %.0f s", source.name, time.monotonic() - started)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds the lock file; raises TimeoutError if another process holds it longer than a compilation may
    take.
    """
    deadline = time.monotonic() + _COMPILE_SECONDS
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path}: another process has compiled for too long") from None
                time.sleep(0.1)
        yield


def _reason(error: Exception) -> str:
    """Returns the compiler's first error, or else the exception's message."""
    output = getattr(error, "stderr", None) or ""
    lines = output.splitlines() if isinstance(output, str) else []
    return next((line for line in lines if "error" in line), str(error))
