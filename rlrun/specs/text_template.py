"""Texts with names in braces, such as the template of a prompt."""

import re

TEMPLATE_PART = re.compile(r"\{\{|\}\}|\{([A-Za-z_][^{}]*)\}")
"""A doubled brace, or a name in braces; `{}` and `{1}`, as in LaTeX, are neither."""


def template_names(template: str) -> set[str]:
    """Returns the names in braces of a template."""
    return {match[1] for match in TEMPLATE_PART.finditer(template) if match[1] is not None}
