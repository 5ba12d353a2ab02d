"""What a page of documentation says: its code, links, tables; for tests that hold it to the code."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# the changelog names what there was at the time
PAGES = sorted(
    [
        *(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"),
        *(ROOT / "docs").glob("*.md"),
        *(ROOT / "docs/spec").glob("*.md"),
        *(ROOT / "benchmarks").glob("*.md"),
        *(ROOT / "examples").glob("*/README.md"),
        *(ROOT / "packages").glob("*/README.md"),
    ]
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FIRST_COLUMN = re.compile(r"^\|[^|]*\|", re.MULTILINE)
_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    """A Markdown file of the documentation."""

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text("utf-8")

    @property
    def prose(self) -> str:
        """The text without its code blocks."""
        return _FENCE.sub("", self.text)

    def blocks(self, language: str) -> list[str]:
        """Code blocks of a language; `""` for those that name none."""
        return [code for named, code in _FENCE.findall(self.text) if named == language]

    def spans(self) -> list[str]:
        """Code within lines, without the first column of tables that begin with other trainers' settings."""
        own = _FIRST_COLUMN.sub("|", self.prose) if self.path.name == "coming-from.md" else self.prose
        return _SPAN.findall(own)

    def links(self) -> list[str]:
        """Targets of links that do not lead out of the repository."""
        return [target for target in _LINK.findall(self.prose) if "://" not in target]

    def anchors(self) -> set[str]:
        """What `#…` may name in this page."""
        return {
            re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(self.text)
        }

    def commands(self) -> Iterator[list[str]]:
        """Every `rlrun …` that is written out, in words."""
        lines = [line for code in self.blocks("") for line in code.replace("\\\n", " ").splitlines()]
        shown = [line.strip() for line in lines]
        for line in (*shown, *self.spans()):
            if line.startswith("rlrun "):
                for command in re.split(r"&&|;|  +|\|(?= )", line.partition(" #")[0]):
                    if command.strip().startswith("rlrun "):
                        yield shlex.split(command.strip().replace("…", ""))[1:]
