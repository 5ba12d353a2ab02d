"""The state of a shell script that is being read: variables, arrays, functions, files and commands."""

from dataclasses import dataclass, field
from pathlib import Path

from rlrun.converters.shell.tree import Block

MAX_STEPS = 100_000
MAX_CHARACTERS = 1_000_000
"""Maximum length of a variable's value."""
MAX_WORDS = 100_000
"""Maximum number of words of an array."""


@dataclass(frozen=True, slots=True)
class Word:
    """An expanded word of a command."""

    text: str
    location: str
    """File and line, such as `run.sh:12`."""
    notes: tuple[str, ...] = ()
    """Assumptions behind the text, about values that only a run of the script could determine."""


@dataclass(slots=True)
class Script:
    """A script's state after the statements that have been followed so far."""

    scalars: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    assumptions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The assumptions behind the value of each variable."""
    functions: dict[str, Block] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    """`$1`, `$2`, … of the current function, or of the script after `set --`."""
    files: dict[str, str] = field(default_factory=dict)
    """Files that the script would write from here-documents, by path."""
    commands: list[list[Word]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder: str = "/"
    """The working folder."""
    steps: int = 0

    def step(self, name: str) -> None:
        """Counts a statement. Raises ValueError for a script that never ends."""
        self.steps += 1
        if self.steps > MAX_STEPS:
            raise ValueError(
                f"{name} executes more than {MAX_STEPS} statements, which is the importer's limit"
            )

    def set_scalar(self, name: str, text: str) -> None:
        """Sets a variable. Raises ValueError if the value is too long, as in a loop that doubles it."""
        if len(text) > MAX_CHARACTERS:
            raise ValueError(f"{name} grows to more than {MAX_CHARACTERS} characters, the importer's limit")
        self.scalars[name] = text

    def set_array(self, name: str, words: list[Word]) -> None:
        """Sets an array. Raises ValueError if it is too long, as in a loop that doubles it."""
        if len(words) > MAX_WORDS or sum(len(word.text) for word in words) > MAX_CHARACTERS:
            raise ValueError(f"{name} grows to more than {MAX_WORDS} words, the importer's limit")
        self.arrays[name] = words

    def note(self, text: str) -> None:
        """Adds a note, unless it was already added."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """The file that is being read."""

    name: str
    path: Path
    chain: tuple[Path, ...] = ()
    """The files that are being read and led to this file by `source`."""
