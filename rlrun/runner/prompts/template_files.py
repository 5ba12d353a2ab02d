"""Checks that a model folder has a tokenizer and a chat template, without loading either."""

from pathlib import Path

from rlrun.models.json_files import read_json

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tiktoken.model")
"""A folder with a tokenizer has at least one of these files."""
_TEMPLATES = ("chat_template.jinja", "chat_template.json")


def template_problem(folder: Path, *, template: bool) -> str | None:
    """Returns what the folder lacks to tokenise prompts; None if nothing is missing.

    `template` says whether prompts are rendered by the model's chat template.
    """
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        return f"{folder} has no tokenizer: none of {', '.join(TOKENIZER_FILES)}; copy it there too"
    config = folder / "tokenizer_config.json"
    try:
        settings = read_json(config) if config.is_file() else {}
    except ValueError as error:
        return str(error)
    if not template or _has_template(folder, settings):
        return None
    return (
        f"the tokenizer of {folder} has no chat template, as base models often do: set "
        "data.apply_chat_template = false, and write prompts as the model should see them (prompt_template)"
    )


def _has_template(folder: Path, settings: object) -> bool:
    inside = isinstance(settings, dict) and settings.get("chat_template")
    named = any((folder / "additional_chat_templates").glob("default.jinja"))
    return bool(inside) or named or any((folder / name).is_file() for name in _TEMPLATES)
