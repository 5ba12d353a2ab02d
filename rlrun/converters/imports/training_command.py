"""Finds the command of a shell script that starts the training."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.converters.shell.files import candidate_files
from rlrun.converters.shell.script import Script, Word, read_script

FindProgram = Callable[[Sequence[Word]], int | None]
"""Returns the position of the training program among a command's words; None if it does not train."""


@dataclass(frozen=True, slots=True)
class TrainingCommand:
    """The last command of a script that trains."""

    path: Path
    script: Script
    words: Sequence[Word]
    program: int
    """Position of the training program in `words`."""

    @property
    def arguments(self) -> Sequence[Word]:
        """The words after the training program."""
        return self.words[self.program + 1 :]

    @property
    def notes(self) -> list[str]:
        """The notes of the script, and the assumptions behind the command's words."""
        return [*self.script.notes, *dict.fromkeys(note for word in self.words for note in word.notes)]

    def find_file(self, written: str) -> Path | None:
        """Returns a file that the command names, which may lie in another folder on this host."""
        return next(candidate_files(written, Path(self.script.folder), self.path.absolute().parent), None)


def read_training_command(path: Path, find_program: FindProgram, missing: str) -> TrainingCommand:
    """Returns the last command of a script that trains. Raises ValueError, with `missing` as what the script
    does not do, if it has no such command."""
    script = read_script(path)
    at = last_training_command(script, path, find_program)
    if at is None:
        raise ValueError(f"{path} {missing}: give the file that launches the job")
    words = script.commands[at]
    program = find_program(words)
    assert program is not None
    return TrainingCommand(path, script, words, program)


def last_training_command(script: Script, path: Path, find_program: FindProgram) -> int | None:
    """Returns the position of the script's last command that trains. Notes that earlier ones are left out."""
    training = [at for at, words in enumerate(script.commands) if find_program(words) is not None]
    if len(training) > 1:
        script.note(f"{path.name} trains {len(training)} times; the last training command is imported")
    return training[-1] if training else None
