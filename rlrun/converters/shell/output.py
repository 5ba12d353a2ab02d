"""Computes the output of `$(…)`, if it runs only harmless programs."""

from dataclasses import dataclass

from rlrun.converters.shell.commands import Commands, redirections
from rlrun.converters.shell.conditions import UNKNOWN
from rlrun.converters.shell.programs import printed
from rlrun.converters.shell.tree import Block, Chain, Group, Node, Pipeline, Simple

Output = tuple[str | None, bool | None]
"""The output of statements and their status; None if only a run could tell."""


@dataclass(slots=True)
class Outputs(Commands):
    """Follows the commands in a command substitution."""

    def output_of(self, text: str) -> str | None:
        """Returns the output of the commands in a text, and then restores the script's state."""
        script = self.script
        before = script.folder, dict(script.scalars), dict(script.arrays), dict(script.assumptions)
        commands = len(script.commands)
        try:
            return self._output(self.parsed(text), "")[0]
        finally:
            script.folder, script.scalars, script.arrays, script.assumptions = before
            del script.commands[commands:]

    def _output(self, block: Block, given: str) -> Output:
        """Returns the output of statements with `given` as their input, and their status."""
        lines, status = [], True if block else None
        for node in block:
            self.script.step(self.file.name)
            text, status = self._printed(node, given)
            if text is None:
                return None, None
            lines.append(text)
        return "\n".join(line for line in lines if line), status

    def _printed(self, node: Node, given: str) -> Output:
        match node:
            case Chain():
                return self._chain_output(node, given)
            case Pipeline():
                text: str | None = given
                for stage in node.stages:
                    text, status = self._printed(stage, text or "")
                    if text is None:
                        return None, None
                return text, status
            case Group():
                return self._output(node.body, given)
            case Simple():
                return self._simple_output(node, given)
        return None, None

    def _chain_output(self, node: Chain, given: str) -> Output:
        text, status = self._printed(node.first, given)
        for joint, pipeline in node.rest:
            if text is None or status is None:
                return None, None
            if status is (joint == "&&"):
                more, status = self._printed(pipeline, given)
                text = None if more is None else text + more
        return text, status

    def _simple_output(self, node: Simple, given: str) -> Output:
        command = redirections(node.tokens)
        words = [word.text for token in command.words for word in self.expansion.words(token)]
        if command.document is not None:
            given = self.expansion.text(command.document.pieces)
        if any(mark in word for word in words for mark in UNKNOWN[:2]):
            return None, None
        if words[:1] == ["pwd"]:
            return self.script.folder, True
        text = printed(words[0], words[1:], given) if words else None
        if text is not None:
            return text, True
        if node.tokens[:1] and (words[:1] in (["cd"], ["["], ["test"], ["true"], ["[["]) or _assigns(node)):
            status = self.simple(node.tokens)
            return (None if status is None else ""), status
        return None, None


def _assigns(node: Simple) -> bool:
    """Returns whether the command's first word sets a variable."""
    name, equals, _ = node.tokens[0].plain.partition("=")
    return bool(equals) and name.isidentifier()
