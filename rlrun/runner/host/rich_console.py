"""Makes the rich consoles of all commands, which print text from elsewhere as it is.

rich would take `[red]` in a name for a style, `[/x]` for a mistake and `:bug:` for a picture, and would pass
escape sequences on to the terminal.
"""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from rlrun.runner.host.printed_text import printable


class SafeConsole(Console):
    """A console without markup, which writes unprintable characters as escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns a text that rich can measure: tables are laid out by the escapes."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yields what is printed; rich's own codes, which move the cursor, are marked as such and stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
