"""Characters that look like others are named, and what a spec may hold is left alone."""

import pytest

from rlrun.specs.problems.findings import look_alike


@pytest.mark.parametrize(
    ("statement", "cure"),
    [
        ("name = “x”", '“ is a typographic quotation mark: write "'),
        ("name = ‘x’", "‘ is a typographic quotation mark: write '"),
        ("[m\u043edel]", "U+043E) is CYRILLIC SMALL LETTER O"),
        ("lr\u00a0= 1e-5", "U+00A0) is NO-BREAK SPACE"),
        ("lr = 1e\u22125", "U+2212) is MINUS SIGN"),
        ('type = "grp\u043e"', "retype 'grp\u043e' on a Latin keyboard"),
    ],
    ids=["double quotes", "single quotes", "header", "blank", "minus", "value"],
)
def test_a_look_alike_is_named(statement: str, cure: str) -> None:
    assert cure in (look_alike(statement) or "")


@pytest.mark.parametrize(
    "statement",
    [
        'system_prompt = "Привет, мир"',
        'path = "größer/三.jsonl"  # “quoted” in a comment – fine',
        "path = 'x'",
        r'answer_pattern = "a\"“b"',
    ],
)
def test_strings_and_comments_may_be_any_language(statement: str) -> None:
    assert look_alike(statement) is None
