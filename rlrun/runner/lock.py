"""spec.lock.json: everything that decided what a run did. Secrets stay the references that the spec has."""

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rlrun.runner.errors import RunFolderError
from rlrun.runner.model_files import ModelFiles, fingerprint
from rlrun.specs.loading import LoadedSpec

_PACKAGES = ("rlrun", "torch", "torchtitan", "transformers", "ray", "numpy", "safetensors", "reasoning-gym")
_FIXED = ("seed", "model", "data")
"""Sections that a resumed run must share with its beginning."""


def lock(loaded: LoadedSpec, model: ModelFiles) -> dict[str, Any]:
    """The lock of a launch; reads the model's files, so it takes their size in time."""
    return {
        "spec": loaded.spec.model_dump(mode="json"),
        "sources": {source.name: source.text for source in loaded.composition.files},
        "model": {"folder": str(model.folder), "commit": model.commit, "sha256": fingerprint(model.folder)},
        "versions": {name: _version(name) for name in _PACKAGES} | {"python": platform.python_version()},
        "git": git_state(Path.cwd()),
        "platform": platform.platform(),
    }


def check_same_run(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """The sections that a resumed run changes. RunFolderError where it would not be the same run any more."""
    old, new = before["spec"], now["spec"]
    changed = [name for name in new if old.get(name) != new[name] and name not in ("name", "runs_dir")]
    if fixed := [name for name in changed if name in _FIXED]:
        raise RunFolderError(
            f"the spec's {', '.join(fixed)} changed since the run began, and its checkpoints belong to what "
            "it was; put it back, or start another run (--new)"
        )
    if before["model"]["sha256"] != now["model"]["sha256"]:
        raise RunFolderError(
            f"the files of {now['model']['folder']} changed since the run began; start another (--new)"
        )
    return changed


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the repository around `folder`, and whether files changed since; None without one."""
    try:
        commit = _git(folder, "rev-parse", "HEAD")
        return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain"))}
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=10).stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
