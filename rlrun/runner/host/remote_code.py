"""The Python files of a model folder: which of them a tokenizer needs, and whether they are the trusted ones.

transformers runs such files (`trust_remote_code`) where a model's tokenizer or config has a class of its own.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rlrun.models.checked_values import abbreviated
from rlrun.models.json_files import read_json_object

_CLASSES = {"tokenizer_config.json": "AutoTokenizer", "config.json": "AutoConfig"}
"""Files whose `auto_map` names code that loading a tokenizer runs, and the class that it stands for."""


@dataclass(frozen=True, slots=True)
class CodeFile:
    """A Python file of a model folder."""

    name: str
    """Path within the folder."""
    size: int
    """Bytes."""
    sha256: str


def code_files(folder: Path) -> tuple[CodeFile, ...]:
    """Returns all Python files of a folder, by name."""
    paths = sorted(path for path in folder.rglob("*.py") if path.is_file())
    return tuple(_code_file(path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths)


def _code_file(name: str, content: bytes) -> CodeFile:
    return CodeFile(name, len(content), hashlib.sha256(content).hexdigest())


def code_problem(folder: Path, *, is_trusted: bool) -> str | None:
    """Returns why a folder's tokenizer cannot be loaded with or without its code; None if it can.

    `is_trusted`: `model.trust_remote_code`. Raises ValueError for a broken file.
    """
    named = dict(_named_code(folder))
    if not is_trusted:
        reference = named.get("tokenizer_config.json")
        if reference is None or (folder / "tokenizer.json").is_file():
            return None
        return (
            f"the tokenizer of {folder} has a class of its own ({reference}): read the folder's .py files, "
            "and set model.trust_remote_code = true if they may run"
        )
    foreign = [reference for reference in named.values() if "--" in reference]
    if foreign:
        return (
            f"{folder} names code of another repository ({', '.join(foreign)}), which is not hashed: copy "
            "the file into the folder, and remove the part up to -- from auto_map"
        )
    if not any(folder.rglob("*.py")):
        return f"model.trust_remote_code = true has no effect: {folder} has no .py files; remove it"
    return None


def _named_code(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields the files whose `auto_map` names a class for loading a tokenizer, and that class."""
    for name, kind in _CLASSES.items():
        if not (folder / name).is_file():
            continue
        classes = read_json_object(folder / name).get("auto_map")
        reference = classes.get(kind) if isinstance(classes, dict) else classes
        references = reference if isinstance(reference, list) else [reference]
        if texts := [text for text in references if isinstance(text, str)]:
            yield name, texts[0]


def check_code(folder: Path, trusted: Iterable[CodeFile]) -> None:
    """Raises ValueError if a folder has a Python file that is not among the trusted ones."""
    known = set(trusted)
    if changed := [file.name for file in code_files(folder) if file not in known]:
        raise ValueError(
            f"{folder} has Python files that differ from those of model.path when the job started: "
            f"{abbreviated(changed)}; use the same files on all hosts, and do not change them during a job"
        )
