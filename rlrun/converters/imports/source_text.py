"""Reads the file that is imported."""

from pathlib import Path


def source_text(path: Path) -> str:
    """Returns the text of a file. Raises ValueError if it cannot be read."""
    try:
        return path.read_text("utf-8")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not text: byte {error.start} is not UTF-8") from None
