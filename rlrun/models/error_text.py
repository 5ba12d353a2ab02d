"""Shortens the messages of libraries' errors."""


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
