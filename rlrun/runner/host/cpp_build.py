"""Compile C++ operators for this machine's CPU once, and load them into torch.

A source file registers its operators with TORCH_LIBRARY. The library is cached under a hash of all that its
code depends on: the source and the headers beside it, torch's version, the flags, and all macros that the
compiler predefines (its version and the instruction sets of `-march=native`), so that unlike machines can
share a home folder.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from rlrun.specs.cache import cache_folder

_RUNNER = Path(__file__).parents[1]
TRAINER_OPERATORS = _RUNNER / "trainer" / "cpu_ops" / "operators.cpp"
ENGINE_OPERATORS = _RUNNER / "engines" / "native" / "model" / "kernels" / "ops.cpp"

_FLAGS = (
    "-O3",
    "-march=native",
    "-std=c++20",
    "-fopenmp",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wno-psabi",
)
_COMPILE_SECONDS = 600.0

_logger = logging.getLogger(__name__)


@cache
def load_operators(source: Path) -> bool:
    """Make the operators of `source` available in `torch.ops`; False, and the reason in the log, if it fails.

    RLRUN_NO_COMPILER=1 switches compiled operators off; RLRUN_CACHE is used in place of ~/.cache/rlrun.
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
    """Whether nothing will be compiled for `source`: it is in the cache, or cannot be compiled here."""
    compiler = find_compiler()
    try:
        return compiler is None or _path(source, compiler).exists()
    except (OSError, subprocess.SubprocessError):  # the process that loads the operators says what is wrong
        return True


def find_compiler() -> str | None:
    """CXX, or the first of c++, g++ and clang++ in PATH; None without any, or where it is not wanted."""
    if os.environ.get("RLRUN_NO_COMPILER") == "1":
        return None
    return os.environ.get("CXX") or next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)


def _library(source: Path, compiler: str) -> Path:
    """The compiled library of `source`, from the cache or built now."""
    library = _path(source, compiler)
    folder = library.parent
    if not library.exists():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_nobody_else_writes(folder)
        with _locked(library.with_suffix(".lock")):
            if not library.exists():  # another process may have built it meanwhile
                _remove_unfinished(library)
                _compile(source, compiler, library)
    _check_nobody_else_writes(folder)
    _check_nobody_else_writes(library)
    return library


def _check_nobody_else_writes(path: Path) -> None:
    """OSError if another user could have written what is run from here, as in a cache folder under /tmp."""
    status = path.stat()
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & stat.S_IWOTH:
        raise OSError(
            f"{path} belongs to another user, or every user may write it; RLRUN_CACHE names another"
        )


def _remove_unfinished(library: Path) -> None:
    """Removes what processes that were killed while they compiled left; the lock is held."""
    for path in library.parent.glob(f"{library.stem}.*.tmp"):
        path.unlink(missing_ok=True)


def _path(source: Path, compiler: str) -> Path:
    """Where the library of `source` is, or will be."""
    return cache_folder() / "operators" / f"{source.stem}-{_key(source, compiler)}.so"


def _torch_folder() -> Path:
    """Where torch is installed; importing it would take seconds."""
    spec = find_spec("torch")
    assert spec is not None, "operators are compiled where torch is installed"
    assert spec.origin is not None, "torch has an __init__.py"
    return Path(spec.origin).parent


def _key(source: Path, compiler: str) -> str:
    macros = subprocess.run(
        [compiler, *_FLAGS, "-dM", "-E", "-x", "c++", os.devnull], check=True, capture_output=True, timeout=60
    ).stdout
    headers = sorted(source.parent.glob("*.h"))
    parts = (
        *(file.read_bytes() for file in (source, *headers)),
        (_torch_folder() / "version.py").read_bytes(),
        " ".join(_FLAGS).encode(),
        macros,
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _compile(source: Path, compiler: str, library: Path) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f"{library.stem}.", suffix=".tmp", dir=library.parent)
    os.close(descriptor)
    unfinished = Path(name)
    started = time.monotonic()
    command = [compiler, *_FLAGS, "-shared", "-fPIC", str(source), "-o", str(unfinished)]
    torch = _torch_folder()
    command += [f"-isystem{torch / 'include'}", f"-L{torch / 'lib'}", "-ltorch_cpu", "-lc10"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMPILE_SECONDS)
        unfinished.replace(library)
    finally:
        unfinished.unlink(missing_ok=True)
    _logger.info("compiled %s in %.0f s", source.name, time.monotonic() - started)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock file; TimeoutError when another process keeps it longer than a build may take."""
    deadline = time.monotonic() + _COMPILE_SECONDS
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"{path}: another process compiles for too long") from None
                time.sleep(0.1)
        yield


def _reason(error: Exception) -> str:
    """The compiler's first error, or the exception itself."""
    output = getattr(error, "stderr", None) or ""
    lines = output.splitlines() if isinstance(output, str) else []
    return next((line for line in lines if "error" in line), str(error))
