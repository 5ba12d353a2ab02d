"""What a shell script has said so far: its variables, arrays, functions, files and commands."""

from dataclasses import dataclass, field
from pathlib import Path

from rlrun.converters.shell.tree import Block

MOST_STEPS = 100_000
MOST_CHARACTERS = 1_000_000
"""The longest value of a variable."""
MOST_WORDS = 100_000
"""The most words of an array."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a command, expanded."""

    text: str
    place: str
    """`run.sh:12`"""
    notes: tuple[str, ...] = ()
    """Assumptions that the text rests on, where only a run of the script would tell."""


@dataclass(slots=True)
class Script:
    """What a script says, in the order it says it."""

    scalars: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[Word]] = field(default_factory=dict)
    assumptions: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """For each variable, what its value rests on."""
    functions: dict[str, Block] = field(default_factory=dict)
    positional: list[str] = field(default_factory=list)
    """`$1`, `$2`, … of the function that runs, or of the script after `set --`."""
    files: dict[str, str] = field(default_factory=dict)
    """Files that the script would write from a text in it."""
    commands: list[list[Word]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    folder: str = "/"
    """The working folder."""
    steps: int = 0

    def step(self, name: str) -> None:
        """Count a statement. ValueError for a script that goes on without end."""
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise ValueError(
                f"{name} runs through more than {MOST_STEPS} statements, and is not read further"
            )

    def set_scalar(self, name: str, text: str) -> None:
        """Set a variable. ValueError for a value that a script doubles without end."""
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"{name} grows to more than {MOST_CHARACTERS} characters, and is not followed")
        self.scalars[name] = text

    def set_array(self, name: str, words: list[Word]) -> None:
        """Set an array. ValueError for one that a script doubles without end."""
        if len(words) > MOST_WORDS or sum(len(word.text) for word in words) > MOST_CHARACTERS:
            raise ValueError(f"{name} grows to more than {MOST_WORDS} words, and is not followed")
        self.arrays[name] = words

    def note(self, text: str) -> None:
        """Keep a note, once."""
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True, slots=True)
class ScriptFile:
    """The file that is being read."""

    name: str
    path: Path
    chain: tuple[Path, ...] = ()
    """The files that source it."""
