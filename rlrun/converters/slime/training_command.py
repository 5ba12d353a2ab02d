"""Finds the training command of a launch script, and its flags."""

import re
from collections.abc import Sequence
from pathlib import Path

from rlrun.converters.shell.script import Script, Word
from rlrun.converters.slime.draft import Flag

_TRAINING = re.compile(r"(?:.*/)?train(?:_async)?\.py")
_FLAG = re.compile(r"--[A-Za-z][A-Za-z0-9_-]*")


def training_command(script: Script, path: Path) -> list[Word]:
    """Returns the words of the training command; without one, those of all arrays named `…_ARGS`."""
    training = [at for at, words in enumerate(script.commands) if _start_of_training(words) is not None]
    if training:
        if len(training) > 1:
            script.note(f"{path.name} trains {len(training)} times; the last training command is imported")
        return _continued(script, training[-1])
    arrays = {name: words for name, words in script.arrays.items() if name.endswith("_ARGS")}
    if not arrays:
        raise ValueError(
            f"{path} runs no train.py and has no array of arguments: give the script that launches the job"
        )
    script.notes.append(f"no command runs train.py; the flags of {', '.join(arrays)} are imported")
    return [word for words in arrays.values() for word in words]


def _start_of_training(words: Sequence[Word]) -> int | None:
    return next((at for at, word in enumerate(words) if _TRAINING.fullmatch(word.text)), None)


def _continued(script: Script, at: int) -> list[Word]:
    """Returns the training command's words, and those of the next line if only a backslash is missing."""
    words = script.commands[at]
    words = words[_start_of_training(words) :]
    following = script.commands[at + 1] if at + 1 < len(script.commands) else []
    if following and _FLAG.match(following[0].text):
        location = words[-1].location
        script.note(
            f"{location}: a backslash is missing at the line's end; the flags after it are imported too"
        )
        return [*words, *following]
    return words


def read_flags(words: Sequence[Word]) -> dict[str, Flag]:
    """Returns the flags by name. The last occurrence of a flag counts; it refers to the earlier ones."""
    flags: dict[str, Flag] = {}
    current: Flag | None = None
    for word in words:
        match = _FLAG.match(word.text)
        if match and (match.end() == len(word.text) or word.text[match.end()] == "="):
            name = match[0].replace("_", "-")
            value = [word.text[match.end() + 1 :]] if match.end() < len(word.text) else []
            before = flags.pop(name, None)
            current = flags[name] = Flag(name, value, word.location, before)
        elif current is not None:
            current.values.append(word.text)
    return flags
