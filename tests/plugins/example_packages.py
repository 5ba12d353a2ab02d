"""The packages under `examples`, built as wheels and installed beside rlrun."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def wheel_of(example: str, folder: Path) -> Path:
    """An example's wheel, built in a folder."""
    source = shutil.copytree(EXAMPLES / example, folder / "source")
    _pip("wheel", source, "--no-build-isolation", "--wheel-dir", folder)
    (wheel,) = folder.glob(f"{example.replace('-', '_')}-0.1.0-*.whl")
    return wheel


def install(example: str, folder: Path) -> Path:
    """A folder for the import path with the example installed from its wheel."""
    _pip("install", wheel_of(example, folder), "--target", folder / "site")
    return folder / "site"


def run_own_tests(tests: str, site: Path) -> None:
    """Pass the tests that come with an example, installed in `site`."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", EXAMPLES / tests],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", *map(str, arguments), "--no-deps", "--no-index", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
