"""The pages that scripts/reference_pages.py writes say what the code says.

Write them again with `.venv/bin/python -m scripts.reference_pages`.
"""

import pytest

from scripts.reference_pages import pages
from tests.docs.pages import ROOT


@pytest.mark.parametrize("name", pages())
def test_the_page_is_what_the_code_says(name: str) -> None:
    assert (ROOT / "docs" / name).read_text("utf-8") == pages()[name]
