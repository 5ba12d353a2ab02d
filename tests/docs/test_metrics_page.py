"""docs/metrics.md names metrics that the code makes, and other pages name metrics that it has."""

import ast
import re
from functools import cache

import pytest

from tests.docs.pages import PAGES, ROOT, Page

INTERNAL = {"train/critic/loss"}
"""Metrics that reach no one."""
ENDINGS = ("", "_time", "_per_gpu")
"""What the code adds to names."""
METRICS = Page(ROOT / "docs" / "metrics.md")


@pytest.mark.parametrize("page", [Page(path) for path in PAGES], ids=lambda page: page.path.name)
def test_other_pages_name_metrics_of_the_page(page: Page) -> None:
    for span in page.spans():
        for name in re.findall(r"(?<![\w/])(?:rollout|train|perf|eval)/[\w/@<>-]+", span):
            known = any(re.fullmatch(pattern, re.sub("<[a-z]+>", "x", name)) for pattern in metrics())
            assert known or name.endswith("/"), span


def test_the_code_makes_them() -> None:
    """Each part of a name is written somewhere in the code."""
    written = words_of_strings()
    for name in metrics():
        for part in re.findall(r"[a-z_]{3,}", name):
            assert any(part.removesuffix(ending) in written for ending in ENDINGS), name


def test_what_the_code_makes_is_on_the_page() -> None:
    for path in sorted((ROOT / "rlrun" / "runner").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and re.fullmatch(
                r"(train|perf|rollout)/[a-z_/]*[a-z]", str(node.value)
            ):
                known = any(re.fullmatch(pattern, node.value) for pattern in metrics())
                assert known or node.value in INTERNAL, f"{path.name}:{node.lineno}: {node.value}"


@cache
def metrics() -> set[str]:
    """Patterns of the names in the page's tables; what stands in <> there is any word."""
    found = set()
    for title, section in re.findall(r"^## (.*?)/.*?$(.*?)(?=^## |\Z)", METRICS.text, re.M | re.S):
        if title == "eval":
            found.add(r"eval/[^/]+/.+")
        for row in re.findall(r"^\| (`.*?) \|", section, re.M):
            names = re.findall(r"`([^`]+)`", row)
            folder = names[0].rpartition("/")[0]
            for name in names:
                for full in (name, f"{folder}/{name}"):  # of `staleness/mean`, `max` the second goes on
                    found.add(re.sub(r"<\w+>", "[^/]+", f"{title}/{full}").replace("@k", r"@\w+"))
    return found


def words_of_strings() -> set[str]:
    """Words of all strings in the code, and names of arguments and fields: both become names of metrics."""
    found: set[str] = set()
    for path in (ROOT / "rlrun").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Constant(value=str(text)):
                    found.update(re.split(r"[^A-Za-z_]+", text))
                case ast.keyword(arg=str(name)) | ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(name)
    return found
