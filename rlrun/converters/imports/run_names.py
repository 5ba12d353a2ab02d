"""Names of runs and datasets, which have only letters, digits, dots, hyphens and underscores."""

import re

from rlrun.converters.imports.import_draft import ImportDraft


def plain_name(text: str, default: str = "") -> str:
    """Returns a text as a name; `default` if nothing is left of it."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or default


def name_after_file(draft: ImportDraft) -> None:
    """Names the run after the imported file, the first of several."""
    stem = draft.source.partition(" ")[0].rpartition(".")[0]
    draft.set("name", plain_name(stem, "run"), (), "the file's name")
