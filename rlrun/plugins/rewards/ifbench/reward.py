"""Whether a response follows the instructions that its row's metadata list."""

from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any, Literal

from rlrun.plugins.rewards.ifbench import counts, formats, ifeval, tasks, words
from rlrun.plugins.types import Sample
from rlrun.specs.section import Section
from rlrun.specs.spelling import nearest

CHECKS = {**counts.CHECKS, **words.CHECKS, **formats.CHECKS, **tasks.CHECKS, **ifeval.CHECKS}
"""Every instruction by its id in the benchmarks."""

Kwargs = Mapping[str, Any]


class IfbenchParams(Section):
    """What counts as following."""

    aggregate: Literal["all", "mean"] = "all"
    """`all`: 1 where every instruction is followed, else 0. `mean`: the share that is followed."""


class Ifbench:
    """Instruction following by the checks of IFBench and IFEval, in the benchmarks' strict mode.

    The row's metadata hold `instruction_id_list` and `kwargs`: a table for each instruction (the last one
    counts for those that have none), or one table for all. Without instructions, or with an empty response,
    the score is 0. The checks are the benchmarks' own rules, odd ones included (`ratio:overlap` compares runs
    of characters); `words:start_verb` goes by a list of verbs, sentences are split by rule.
    """

    Params = IfbenchParams
    api_version = 1
    late_score = 0.0

    def __init__(self, params: IfbenchParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """From 0 to 1. ValueError for an unknown instruction, or one whose arguments are missing."""
        metadata = sample.prompt.row.metadata
        ids = [
            str(one).strip() for one in metadata.get("instruction_id_list") or () if str(one or "").strip()
        ]
        if not ids:
            return 0.0
        arguments = _arguments(metadata.get("kwargs"), len(ids))
        followed = [follows(sample.text, *pair) for pair in zip(ids, arguments, strict=True)]
        return float(all(followed)) if self.params.aggregate == "all" else sum(followed) / len(followed)


def follows(text: str, instruction: str, arguments: Kwargs) -> bool:
    """Whether the text follows one instruction; arguments that it does not take are ignored."""
    if instruction not in CHECKS:
        meant = nearest(instruction, list(CHECKS))
        guess = f"; did you mean {meant!r}?" if meant else ""
        raise ValueError(f"there is no instruction {instruction!r}{guess}")
    check = CHECKS[instruction]
    given: dict[str, Any] = {}
    for name in list(signature(check).parameters)[1:]:
        if arguments.get(name) is None:
            raise ValueError(f"instruction {instruction!r} needs the argument {name!r}")
        given[name] = arguments[name]
    return bool(text.strip()) and check(text, **given)


def _arguments(given: Any, count: int) -> list[Kwargs]:
    """One table for each of `count` instructions."""
    if isinstance(given, Mapping):
        return [given] * count
    tables = [one if isinstance(one, Mapping) else {} for one in given] if isinstance(given, Sequence) else []
    last: Kwargs = tables[-1] if tables else {}
    return [*tables[:count], *[last] * (count - len(tables))]
