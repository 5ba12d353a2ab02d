"""The page's source (page/) and the script that is built from it."""

import hashlib
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "page"
ASSETS = Path(str(files("rlrun.runner.view"))) / "assets"
NODE = shutil.which("node")
MAX_COLUMNS = 120


def has_supported_node() -> bool:
    if NODE is None:
        return False
    version = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True).stdout
    return int(version.removeprefix("v").partition(".")[0]) >= 20


def test_the_built_script_is_of_the_present_source() -> None:
    header, _, script = (ASSETS / "page.js").read_text().partition("\n")
    sources = [path.read_text() for path in sorted((PAGE / "src").iterdir())]
    digest = hashlib.sha256("".join([*sources, script]).encode()).hexdigest()
    assert header.endswith(f": {digest}"), "run `make page`, which needs Node, and commit page.js"


def test_every_module_is_in_the_built_script_once() -> None:
    script = (ASSETS / "page.js").read_text()
    modules = re.findall(r"^ *// src/(\w+\.js)$", script, re.MULTILINE)
    assert sorted(modules) == sorted(path.name for path in (PAGE / "src").iterdir())
    assert not re.search(r"^ *(import|export) ", script, re.MULTILINE)
    assert "innerHTML" not in script


def test_no_line_of_the_page_is_long() -> None:
    own = [path for path in ASSETS.iterdir() if path.is_file()]
    sources = [*own, *PAGE.glob("*.js"), *PAGE.glob("src/*"), *PAGE.glob("tests/*")]
    long_lines = [
        f"{path.name}:{number}"
        for path in sources
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > MAX_COLUMNS
    ]
    assert long_lines == []


@pytest.mark.skipif(not has_supported_node(), reason="Node 20 or newer is not installed")
def test_the_pages_own_unit_tests_pass() -> None:
    done = subprocess.run(["node", "--test"], cwd=PAGE, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
