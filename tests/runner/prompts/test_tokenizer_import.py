"""A driver reads tokens without torch; everything else imports transformers as it is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.runner.prompts.tokenizer import load_tokenizer
from tests.tiny_models import make_tiny_model

READ = """
import sys
from pathlib import Path
from rlrun.runner.prompts.tokenizer import load_tokenizer
from rlrun.runner.prompts.tokenizer_import import need_only_tokenizers
{before}
tokenizer = load_tokenizer(Path({folder!r}), None)
print(tokenizer.encode("seven"), "torch" in sys.modules)
import importlib.metadata, torch
from transformers.utils import import_utils, is_torch_available
print(bool(import_utils.PACKAGE_DISTRIBUTION_MAPPING), "torch" in importlib.metadata.packages_distributions())
print(is_torch_available())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages with a filter and a reward of somebody else."""
    site = tmp_path_factory.mktemp("site")
    info = site / "acme-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rlrun.filters]\nacme = rlrun.plugins.filters.length:Length\n"
        "[rlrun.rewards]\nacme = rlrun.plugins.rewards.length:Length\n"
    )
    return site


def read(folder: Path, site: Path, before: str) -> list[str]:
    code = READ.format(before=before, folder=str(folder))
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(site)},
    )
    assert "PyTorch was not found" not in run.stderr
    return run.stdout.splitlines()


@pytest.mark.parametrize(
    ("before", "with_torch"),
    [
        ("need_only_tokenizers()", False),
        pytest.param(
            "from rlrun.plugins.registry import load; load('rewards', 'acme'); need_only_tokenizers()",
            False,
            marks=pytest.mark.slow,
        ),
        pytest.param("", True, marks=pytest.mark.slow),
        ("import transformers; need_only_tokenizers()", True),
        ("from rlrun.plugins.registry import load; load('filters', 'acme'); need_only_tokenizers()", True),
    ],
    ids=[
        "a driver",
        "with a reward of others",
        "any process",
        "transformers is there",
        "with a filter of others",
    ],
)
def test_transformers_is_imported_without_torch_only_where_nothing_needs_it(
    folder: Path, site: Path, before: str, with_torch: bool
) -> None:
    tokens, packages, available = read(folder, site, before)
    assert tokens.startswith(str(load_tokenizer(folder, None).encode("seven")))
    assert (packages, available) == (f"{with_torch} True", str(with_torch))
    if not with_torch:
        assert tokens.endswith("False")


def test_a_model_with_images_gets_all_of_transformers(site: Path, tmp_path: Path) -> None:
    seeing = make_tiny_model(tmp_path / "seeing")
    (seeing / "preprocessor_config.json").write_text("{}")
    *_, available = read(seeing, site, "need_only_tokenizers()")
    assert available == "True"


def test_other_threads_find_torch_meanwhile(folder: Path, site: Path) -> None:
    """As the driver's main thread does, which compiles operators for the machine."""
    watching = """
import builtins, importlib.util, threading
found, imported = [], builtins.__import__
def look():
    found.append(importlib.util.find_spec("torch") is not None)
def watch(name, *args, **kwargs):
    if name == "transformers":
        module = imported(name, *args, **kwargs)
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return module
    return imported(name, *args, **kwargs)
builtins.__import__ = watch
import atexit; atexit.register(lambda: print(found[0]))
need_only_tokenizers()
"""
    *_, available, found = read(folder, site, watching)
    assert (available, found) == ("False", "True")
