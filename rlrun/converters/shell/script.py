"""Reads a shell script without running it: follows variables, conditions, loops, functions and sourced files.

    text -> tokens.py -> syntax.py (a tree) -> here, statement by statement -> Script

No program is started. The output of harmless programs (`seq`, `dirname`, `echo`) is computed. Any other
command substitution stays as written; a condition that depends on it is assumed to hold, and the values that
rest on this assumption carry a note. The environment is never read.
"""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from rlrun.converters.shell import tree
from rlrun.converters.shell.conditions import UNKNOWN
from rlrun.converters.shell.files import candidate_files
from rlrun.converters.shell.output import Outputs
from rlrun.converters.shell.state import Script, ScriptFile, Word
from rlrun.converters.shell.syntax import parse
from rlrun.converters.shell.tokens import tokens
from rlrun.converters.shell.tree import Block, Node

__all__ = ["Script", "Word", "read_script"]

_EXITS = {"exit", "return"}
_MAX_ROUNDS = 1000


def read_script(path: Path) -> Script:
    """Reads a script and the files it sources. Raises ValueError if the script cannot be read."""
    script = Script(folder=str(path.parent.absolute()))
    try:
        _Reader(script, ScriptFile(path.name, path)).read()
    except RecursionError:
        raise ValueError(f"{path} nests its expressions too deeply to be read") from None
    return script


@dataclass(slots=True)
class _Reader(Outputs):
    """Follows the statements of one file."""

    def read(self) -> None:
        """Follows the whole file."""
        path = self.file.path
        try:
            text = path.read_text("utf-8")
        except OSError as error:
            raise ValueError(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not a script: byte {error.start} is not UTF-8 text") from None
        self.run(self.parsed(text))

    def parsed(self, text: str) -> Block:
        """Returns the statements of a text."""
        return parse(list(tokens(text, self.file.name)))

    def run(self, block: Block) -> bool | None:
        """Follows statements and returns the status of the last one."""
        status: bool | None = True
        for node in block:
            self.script.step(self.file.name)
            status = self._follow(node)
        return status

    def source(self, written: str, line: int) -> None:
        """Follows another file; its folder may differ between this host and the script's."""
        where = f"{self.file.name}:{line}"
        file = next(
            candidate_files(written, Path(self.script.folder), self.file.path.absolute().parent), None
        )
        if file is None:
            self.script.note(f"{where}: {written} was not found, and is not read")
        elif file.resolve() in (*self.file.chain, self.file.path.resolve()):
            self.script.note(f"{where}: {written} sources itself; it is read once")
        else:
            inner = ScriptFile(file.name, file, (*self.file.chain, self.file.path.resolve()))
            _Reader(self.script, inner, self.doubts, calls=self.calls).read()

    def _follow(self, node: Node) -> bool | None:
        match node:
            case tree.Simple():
                return self.simple(node.tokens)
            case tree.Pipeline():
                status = [self._follow(stage) for stage in node.stages][-1]
                return (not status if status is not None else None) if node.negated else status
            case tree.Chain():
                return self._chain(node)
            case tree.If():
                return self._condition(node)
            case tree.For():
                return self._loop(node)
            case tree.While():
                return self._repeat(node)
            case tree.Case():
                return self._case(node)
            case tree.Function():
                self.script.functions[node.name] = node.body
                return True
            case tree.Group():
                return self.run(node.body)

    def _chain(self, node: tree.Chain) -> bool | None:
        """Follows `A && B || C`. An unknown status counts as success: `&&` continues, `||` does not."""
        status = self._follow(node.first)
        for joint, pipeline in node.rest:
            if status is (joint == "||") or (status is None and joint == "||") or _ends_script((pipeline,)):
                continue
            status = self._follow(pipeline)
        return status

    def _condition(self, node: tree.If) -> bool | None:
        """Follows the first branch whose condition may hold and that does not end the script."""
        doubts: list[str] = []
        for condition, body in node.branches:
            self.tested.clear()
            status = self.run(condition) if condition else True
            doubts += self.tested
            if status is False or _ends_script(body):
                continue
            return self._run_assuming(body, [*doubts, "?"] if status is None else doubts)
        return True

    def _run_assuming(self, body: Block, doubts: list[str]) -> bool | None:
        """Follows statements, and adds `doubts` to the assumptions behind the variables that they set."""
        outer, self.doubts = self.doubts, [*self.doubts, *doubts]
        status = self.run(body)
        self.doubts = outer
        return status

    def _loop(self, node: tree.For) -> bool | None:
        """Follows a loop over words, or a loop with a counter."""
        if node.arithmetic is not None:
            return self._count(node, node.arithmetic)
        for word in [word for token in node.words for word in self.expansion.words(token)][:_MAX_ROUNDS]:
            self.set(node.name, word.text, 0, word.notes)
            self.run(node.body)
        return True

    def _count(self, node: tree.For, expression: str) -> bool | None:
        """Follows `for ((start; condition; step))`."""
        start, condition, step, *_ = [*expression.split(";"), "", "", ""]
        self.expansion.arithmetic(start)
        for _ in range(_MAX_ROUNDS):
            if not self.expansion.arithmetic(condition):
                break
            self.run(node.body)
            self.expansion.arithmetic(step)
        return True

    def _repeat(self, node: tree.While) -> bool | None:
        """Follows a loop while its condition is known to hold and its body changes a variable."""
        for _ in range(_MAX_ROUNDS):
            status = self.run(node.condition)
            if status is node.until:
                break
            before = self._variables()
            self._run_assuming(node.body, ["?"] if status is None else [])
            if status is None or before == self._variables():
                break
        return True

    def _variables(self) -> tuple[dict[str, str], dict[str, int]]:
        return dict(self.script.scalars), {name: len(words) for name, words in self.script.arrays.items()}

    def _case(self, node: tree.Case) -> bool | None:
        """Follows the first branch with a pattern that may match."""
        expansion = self.expansion
        expansion.unset_is_empty = True
        subject = expansion.text(node.subject.pieces)
        unknown = any(mark in subject for mark in UNKNOWN)
        for patterns, body in node.branches:
            matches = any(fnmatchcase(subject, expansion.text(pattern.pieces)) for pattern in patterns)
            if (matches or unknown) and not _ends_script(body):
                return self._run_assuming(body, [*expansion.assumptions, *(["?"] if unknown else [])])
            if matches:
                break
        return True


def _ends_script(block: Block) -> bool:
    """Returns whether statements end the script. A run that trains does not take such a branch."""
    for node in block:
        match node:
            case tree.Chain(first=pipeline):
                if _ends_script((pipeline,)):
                    return True
            case tree.Pipeline(stages=(tree.Simple(tokens=(token, *_)), *_)):
                if token.keyword in _EXITS:
                    return True
            case tree.Pipeline(stages=(tree.Group(body=body), *_)):
                if _ends_script(body):
                    return True
    return False
