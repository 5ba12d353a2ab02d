"""The packages under `examples` and `packages`, built as wheels and installed beside rlrun."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def wheel_of(package: str, folder: Path) -> Path:
    """Builds the wheel of `examples/NAME` or `packages/NAME` in a folder and returns its path."""
    source = shutil.copytree(ROOT / package, folder / "source")
    _pip("wheel", source, "--no-build-isolation", "--wheel-dir", folder)
    (wheel,) = folder.glob(f"{Path(package).name.replace('-', '_')}-0.1.0-*.whl")
    return wheel


def install(package: str, folder: Path) -> Path:
    """Installs a package from its wheel into a folder for the import path, and returns that folder."""
    _pip("install", wheel_of(package, folder), "--target", folder / "site")
    return folder / "site"


def run_own_tests(tests: str, site: Path) -> None:
    """Pass the tests that come with an example, installed in `site`."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / tests],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", *map(str, arguments), "--no-deps", "--no-index", "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
