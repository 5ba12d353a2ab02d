"""Fixtures and settings that several parts of the tests use."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import settings

# CI tries the same examples each time, so that a change is judged by what it changed; elsewhere they vary.
settings.register_profile("ci", derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

InstallPlugin = Callable[..., Path]


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallPlugin:
    """`install_plugin(kind, name, "module:Class", source)`: a distribution of one plugin, as installed."""

    def install(kind: str, name: str, target: str, source: str = "", distribution: str = "acme") -> Path:
        folder = tmp_path / f"site-{distribution}"
        info = folder / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        with (info / "entry_points.txt").open("a") as file:
            file.write(f"[rlrun.{kind}]\n{name} = {target}\n")
        module = target.partition(":")[0]
        (folder / f"{module}.py").write_text(dedent(source))
        monkeypatch.syspath_prepend(str(folder))
        sys.modules.pop(module, None)
        return folder

    return install
