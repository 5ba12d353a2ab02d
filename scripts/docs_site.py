"""Builds the documentation's site: `python scripts/docs_site.py [FOLDER]`; `make docs` runs it.

The pages are written to be read on GitHub as well. This script copies them, and the files outside of docs/
that they link to, into one folder. docs/README.md becomes the home page, and its lists the navigation.
Zensical then builds the site without a network, and fails where a link leads to no page or heading.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
HOME = DOCS / "README.md"
PAGES = [
    *sorted(DOCS.glob("*.md")),
    *sorted((DOCS / "spec").glob("*.md")),
    ROOT / "benchmarks" / "NOTES.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
]
_LINK = re.compile(r"(?<=\]\()[^)\s#:]+(?=[)#])")
_ITEM = re.compile(r"^- \[([^]]+)\]\(([^)]+)\)", re.MULTILINE)


def main(folder: Path) -> int:
    """Builds the site in `folder`/site; returns Zensical's exit status."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(DOCS / "images", folder / "pages" / "images")
    shutil.copyfile(DOCS / "site.css", folder / "pages" / "site.css")
    for page in PAGES:
        write_page(page, folder / "pages")
    config = (ROOT / "zensical.toml").read_text("utf-8")
    nav = f"[project]\nnav = {to_toml(navigation())}"
    (folder / "zensical.toml").write_text(config.replace("[project]", nav, 1), "utf-8")
    return build(folder)


def build(folder: Path) -> int:
    """Runs Zensical, which is installed beside this interpreter."""
    zensical = Path(sys.executable).with_name("zensical")
    return subprocess.run([zensical, "build", "--strict", "--clean"], cwd=folder, check=False).returncode


def write_page(page: Path, folder: Path) -> None:
    """Copies a page, with links that lead from its copy to the copies of what it links to."""

    def moved(link: re.Match[str]) -> str:
        target = (page.parent / link[0]).resolve()
        return os.path.relpath(copied_name(target), Path(site_name(page)).parent)

    def copied_name(target: Path) -> str:
        if target in PAGES:
            return site_name(target)
        if target.is_relative_to(DOCS / "images"):
            return target.relative_to(DOCS).as_posix()
        copy = folder / "files" / target.name
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(target, copy)
        return f"files/{copy.name}"

    path = folder / site_name(page)
    path.parent.mkdir(exist_ok=True)
    path.write_text(_LINK.sub(moved, page.read_text("utf-8")), "utf-8")


def site_name(page: Path) -> str:
    """Returns the path of a page's copy: pages outside of docs/ come to the top."""
    if page == HOME:
        return "index.md"
    return page.relative_to(DOCS).as_posix() if page.is_relative_to(DOCS) else page.name


def navigation() -> dict[str, dict[str, Path]]:
    """Returns the sections of the home page: the title and the file of each page that they list."""
    _, *sections = re.split(r"^## ", HOME.read_text("utf-8"), flags=re.MULTILINE)
    return {
        section.partition("\n")[0]: {
            title: (DOCS / target).resolve() for title, target in _ITEM.findall(section)
        }
        for section in sections
    }


def subpages(page: Path) -> dict[str, Path]:
    """Returns the title and the file of each page that this page lists in the folder of its own name."""
    items = {title: (DOCS / target).resolve() for title, target in _ITEM.findall(page.read_text("utf-8"))}
    return {title: target for title, target in items.items() if target.parent == page.with_suffix("")}


def to_toml(sections: dict[str, dict[str, Path]]) -> str:
    """Returns the navigation as Zensical reads it; a page with subpages is a section that begins with it."""
    lines = ['{ "Home" = "index.md" }']
    for title, pages in sections.items():
        items = []
        for name, page in pages.items():
            inner = [_item(*each) for each in subpages(page).items()]
            items.append(
                _section(name, [json.dumps(site_name(page)), *inner]) if inner else _item(name, page)
            )
        lines.append(_section(title, items))
    return f"[{', '.join(lines)}]"


def _item(title: str, page: Path) -> str:
    return f"{{ {json.dumps(title)} = {json.dumps(site_name(page))} }}"


def _section(title: str, items: list[str]) -> str:
    return f"{{ {json.dumps(title)} = [{', '.join(items)}] }}"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if sys.argv[1:] else ROOT / "build" / "docs"))
