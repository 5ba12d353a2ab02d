"""Grades the last `Answer: …` line of a response, as DAPO does (https://arxiv.org/abs/2503.14476)."""

import re
from typing import Any

from rlrun.plugins.rewards.extraction import last_boxed
from rlrun.plugins.rewards.math_grading.equivalence import same_answer
from rlrun.plugins.rewards.math_grading.latex import normalised
from rlrun.plugins.rewards.needs_label import NeedsLabel
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section

TAIL = 300
"""Characters at the end of a response in which the answer must stand."""

_ANSWER = re.compile(r"answer\**\s*:\s*([^\n]+)", re.IGNORECASE)
_DECORATION = re.compile(r"\*\*|\"|\\l?dots")
_ARTICLE = re.compile(r"^an?\s+(?=\S)", re.IGNORECASE)
_END_TOKEN = re.compile(r"<\|[a-z_]+\|>|</s>")


class DapoParams(Section):
    """The reward has no parameters."""


class Dapo(NeedsLabel):
    """`score`: 1 for the right answer, -1 for a wrong or missing one; `acc`: 1 or 0; `pred`: what was graded.

    Choose one with `key`. Answers are compared as `math` compares them: unlike DAPO's grader, a full stop, a
    leading zero or bold type do not make a right one wrong.
    """

    Params = DapoParams
    api_version = 1

    def __init__(self, params: DapoParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> dict[str, float | str]:
        """`{"score": 1 or -1, "acc": 1 or 0, "pred": "42"}`; `[INVALID]` where nothing is stated."""
        answer = final_answer(sample.text)
        right = answer is not None and same_answer(answer, _whole(sample.prompt.row.label))
        return {
            "score": 1.0 if right else -1.0,
            "acc": float(right),
            "pred": answer if answer is not None else "[INVALID]",
        }


def final_answer(text: str) -> str | None:
    """What follows the last `Answer:` near the end of the text, out of box and decoration."""
    found = _ANSWER.findall(text[-TAIL:])
    if not found:
        return None
    answer = _DECORATION.sub("", _END_TOKEN.sub("", found[-1])).strip()
    boxed = last_boxed(answer)
    answer = answer if boxed is None else boxed
    return normalised(_ARTICLE.sub("", answer.rpartition("=")[2].strip()))


def _whole(label: Any) -> str:
    """DAPO's labels are whole numbers, whatever type they come as."""
    text = str(label)
    boxed = last_boxed(text)
    text = normalised(text if boxed is None else boxed)
    try:
        return str(int(float(text)))
    except (ValueError, OverflowError):
        return text
