"""Scores whether a response follows the instructions that its row's metadata lists."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from inspect import signature
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from rlrun.plugins.types import Sample
from rlrun_ifbench import counts, formats, ifeval, tasks, words

CHECKS = {**counts.CHECKS, **words.CHECKS, **formats.CHECKS, **tasks.CHECKS, **ifeval.CHECKS}
"""Maps the id of each instruction in the benchmarks to the function that checks it."""

Kwargs = Mapping[str, Any]


class IfbenchParams(BaseModel):
    """The keys beside `type = "ifbench"` in a spec."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    aggregate: Literal["all", "mean"] = "all"
    """`all`: 1 if the response follows every instruction, else 0. `mean`: the share that it follows."""


class Ifbench:
    """Instruction following by the checks of IFBench and IFEval, in the benchmarks' strict mode.

    The row's metadata has `instruction_id_list` and `kwargs`. `kwargs` is a list with a table of arguments
    for each instruction (instructions beyond its end take the last table), or one table for all of them.
    The score is 0 if there are no instructions or the response is empty. The checks follow the benchmarks'
    own rules, odd ones included: `ratio:overlap` compares runs of characters, `words:start_verb` looks the
    first word up in a list of verbs, and sentences are split by rules.
    """

    Params = IfbenchParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: IfbenchParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """Returns a score from 0 to 1. Raises ValueError for an unknown instruction or a missing argument."""
        metadata = sample.prompt.row.metadata
        listed = [str(name or "").strip() for name in metadata.get("instruction_id_list") or ()]
        instructions = [name for name in listed if name]
        if not instructions:
            return 0.0
        tables = _arguments(metadata.get("kwargs"), len(instructions))
        followed = [follows(sample.text, *pair) for pair in zip(instructions, tables, strict=True)]
        return float(all(followed)) if self.params.aggregate == "all" else sum(followed) / len(followed)


def follows(text: str, instruction: str, arguments: Kwargs) -> bool:
    """Returns whether the text follows one instruction. Ignores arguments that its check does not take."""
    if instruction not in CHECKS:
        similar = get_close_matches(instruction, CHECKS, n=1)
        guess = f"; did you mean {similar[0]!r}?" if similar else ""
        raise ValueError(f"there is no instruction {instruction!r}{guess}")
    check = CHECKS[instruction]
    taken: dict[str, Any] = {}
    for name in list(signature(check).parameters)[1:]:
        if arguments.get(name) is None:
            raise ValueError(f"instruction {instruction!r} needs the argument {name!r}")
        taken[name] = arguments[name]
    return bool(text.strip()) and check(text, **taken)


def _arguments(kwargs: Any, count: int) -> list[Kwargs]:
    """Returns one table of arguments for each of `count` instructions."""
    if isinstance(kwargs, Mapping):
        return [kwargs] * count
    tables: list[Kwargs] = []
    if isinstance(kwargs, Sequence):
        tables = [table if isinstance(table, Mapping) else {} for table in kwargs]
    last = tables[-1] if tables else {}
    return [*tables[:count], *[last] * (count - len(tables))]
