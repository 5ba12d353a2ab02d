"""Computes the output of `$(…)`, if it runs only harmless programs."""

from dataclasses import dataclass

from rlrun.converters.shell.commands import Commands, split_redirections
from rlrun.converters.shell.conditions import UNKNOWN
from rlrun.converters.shell.programs import output_of
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

    def _output(self, block: Block, stdin: str) -> Output:
        """Returns the output of statements with the input `stdin`, and their status."""
        lines, status = [], True if block else None
        for node in block:
            self.script.step(self.file.name)
            text, status = self._node_output(node, stdin)
            if text is None:
                return None, None
            lines.append(text)
        return "\n".join(line for line in lines if line), status

    def _node_output(self, node: Node, stdin: str) -> Output:
        match node:
            case Chain():
                return self._chain_output(node, stdin)
            case Pipeline():
                text: str | None = stdin
                for stage in node.stages:
                    text, status = self._node_output(stage, text or "")
                    if text is None:
                        return None, None
                return text, status
            case Group():
                return self._output(node.body, stdin)
            case Simple():
                return self._simple_output(node, stdin)
        return None, None

    def _chain_output(self, node: Chain, stdin: str) -> Output:
        text, status = self._node_output(node.first, stdin)
        for joint, pipeline in node.rest:
            if text is None or status is None:
                return None, None
            if status is (joint == "&&"):
                more, status = self._node_output(pipeline, stdin)
                text = None if more is None else text + more
        return text, status

    def _simple_output(self, node: Simple, stdin: str) -> Output:
        command = split_redirections(node.tokens)
        words = [word.text for token in command.words for word in self.expansion.words(token)]
        if command.document is not None:
            stdin = self.expansion.text(command.document.pieces)
        if any(mark in word for word in words for mark in UNKNOWN[:2]):
            return None, None
        if words[:1] == ["pwd"]:
            return self.script.folder, True
        text = output_of(words[0], words[1:], stdin) if words else None
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
