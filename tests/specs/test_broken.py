"""Every spec under broken/ fails with exactly the problems its last lines expect.

`# expect LINE:COLUMN KEY` or `# expect LINE:COLUMN KEY -> SUGGESTION`; `FILE:LINE:COLUMN` for a problem of
another file in the `extends` chain, `-` for a problem without key.
"""

from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.problems import Problem, SpecError

BROKEN = Path(__file__).parent / "broken"


def as_expected(problem: Problem, spec: Path) -> str:
    file = Path(problem.file).name
    place = f"{problem.line}:{problem.column}"
    suggestion = f" -> {problem.suggestion}" if problem.suggestion else ""
    return f"{place if file == spec.name else f'{file}:{place}'} {problem.key or '-'}{suggestion}"


@pytest.mark.parametrize("spec", sorted(BROKEN.glob("*.toml")), ids=lambda path: path.stem)
def test_a_broken_spec_is_told_where_and_what(spec: Path) -> None:
    lines = spec.read_text("utf-8").splitlines()
    expected = [line.removeprefix("# expect ") for line in lines if line.startswith("# expect ")]
    with pytest.raises(SpecError) as caught:
        load_checked_spec([spec])
    assert [as_expected(problem, spec) for problem in caught.value.problems] == expected
    for problem in caught.value.problems:
        assert problem.source_line in Path(problem.file).read_text("utf-8")
        assert problem.column + problem.width <= max(len(problem.source_line), problem.column) + 1


def test_the_corpus_is_large() -> None:
    assert len(list(BROKEN.glob("*.toml"))) >= 140
