"""docs/slime-defaults.md is current, and has every default of slime that differs from rlrun's."""

from tests.docs.slime_defaults import PAGE, page


def test_the_page_is_current_and_no_default_differs_silently() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m tests.docs.slime_defaults"
