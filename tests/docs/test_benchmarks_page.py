"""docs/benchmarks.md says of every set what rlrun/specs/benchmarks.toml says.

`python -m tests.docs.test_benchmarks_page` writes the two tables of the page.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from rlrun.specs.benchmarks import Benchmark, benchmarks

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
HEADS = ("| set | repository on the hub |", "| set | commit |")


def _row(name: str, benchmark: Benchmark) -> str:
    where = benchmark.repository + (f", `{benchmark.config}`" if benchmark.config else "")
    where += f", `{benchmark.file}`" if benchmark.file else ""
    split = "all" if benchmark.file else f"`{benchmark.split}`"
    score = benchmark.score
    shown = "" if score is None else f"{score.model}: {score.value:g} ({score.source})"
    cells = (f"`{name}`", where, split, f"`{benchmark.reward['type']}`", benchmark.prompt_from, shown)
    return f"| {' | '.join(cells)} |"


def _tables() -> Sequence[Sequence[str]]:
    sets = benchmarks().items()
    pins = [f"| `{name}` | `{each.revision}` | {each.pinned_by} |" for name, each in sets]
    return [_row(name, each) for name, each in sets], pins


def _with_tables(text: str) -> str:
    """Returns the page with the rows that it should have."""
    for head, rows in zip(HEADS, _tables(), strict=True):
        table = re.search(rf"^{re.escape(head)}.*\n\|[-| ]+\|\n((?:(?!\n).*\n)*)", text, re.MULTILINE)
        assert table is not None, head
        text = text[: table.start(1)] + "".join(f"{row}\n" for row in rows) + text[table.end(1) :]
    return text


def test_the_tables_of_the_page_are_those_of_the_sets() -> None:
    text = PAGE.read_text()
    assert text == _with_tables(text), "run python -m tests.docs.test_benchmarks_page"


if __name__ == "__main__":
    PAGE.write_text(_with_tables(PAGE.read_text()))
