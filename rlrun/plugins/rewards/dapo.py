"""Grades the last `Answer: …` line of a response, as DAPO does (https://arxiv.org/abs/2503.14476)."""

import re
from typing import Any

from pydantic import Field

from rlrun.plugins.rewards.extraction import last_boxed
from rlrun.plugins.rewards.math_grading.equivalence import same_answer
from rlrun.plugins.rewards.math_grading.latex import normalise
from rlrun.plugins.rewards.needs_label import NeedsLabel
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section

TAIL = 300
"""Number of characters at the end of a response in which the answer is searched."""

_ANSWER = re.compile(r"answer\**\s*:\s*([^\n]+)", re.IGNORECASE)
_DECORATION = re.compile(r"\*\*|\"|\\l?dots")
_ARTICLE = re.compile(r"^an?\s+(?=\S)", re.IGNORECASE)
_END_TOKEN = re.compile(r"<\|[a-z_]+\|>|</s>")


LEAST_LOSS = -0.6
"""The highest score of a wrong answer, however many tools were called."""


class DapoParams(Section):
    """Where the answer is, and what calls of tools are worth."""

    boxed: bool = False
    r"""Grade the content of the last `\\boxed{}` in place of the last `Answer: …`."""
    tool_bonus: float = Field(default=0.0, ge=0)
    """What each call of a tool adds to the score of a wrong answer, so that the policy learns to call tools:
    the score is −1 + `tool_bonus` · (calls − 2), at most −0.6. slime's example of ReTool has 0.05. 0: −1."""


class Dapo(NeedsLabel):
    """Returns `score` (1 for the right answer, -1 for a wrong or missing one), `acc` (1 or 0) and `pred` (the
    graded text).

    The spec chooses one of them with `key`. Answers are compared as `math` compares them. Unlike with DAPO's
    grader, a full stop, a leading zero or bold type do not make a right answer wrong.
    """

    Params = DapoParams
    api_version = 1

    def __init__(self, params: DapoParams) -> None:
        self.params = params

    def score(self, sample: Sample) -> dict[str, float | str]:
        """Returns a table such as `{"score": 1, "acc": 1, "pred": "42"}`; `pred` is `[INVALID]` without an
        answer.
        """
        answer = _boxed_answer(sample.text) if self.params.boxed else final_answer(sample.text)
        right = answer is not None and same_answer(answer, _normalise_label(sample.prompt.row.label))
        return {
            "score": 1.0 if right else self._loss(sample),
            "acc": float(right),
            "pred": answer if answer is not None else "[INVALID]",
        }

    def _loss(self, sample: Sample) -> float:
        """Returns the score of a wrong answer."""
        if not self.params.tool_bonus:
            return -1.0
        calls = sample.info.get("tool_calls", 0)
        if not isinstance(calls, int | float):
            raise ValueError(
                f"tool_bonus counts info.tool_calls, which is {calls!r}: note their number there"
            )
        return min(LEAST_LOSS, -1.0 + self.params.tool_bonus * (calls - 2))


def _boxed_answer(text: str) -> str | None:
    boxed = last_boxed(text)
    return None if boxed is None else normalise(boxed)


def final_answer(text: str) -> str | None:
    """Returns the text after the last `Answer:` near the end of the response, without box and decoration."""
    answers = _ANSWER.findall(text[-TAIL:])
    if not answers:
        return None
    answer = _DECORATION.sub("", _END_TOKEN.sub("", answers[-1])).strip()
    boxed = last_boxed(answer)
    answer = answer if boxed is None else boxed
    return normalise(_ARTICLE.sub("", answer.rpartition("=")[2].strip()))


def _normalise_label(label: Any) -> str:
    """Returns the label as text; DAPO's labels are whole numbers, whatever type they are stored as."""
    text = str(label)
    boxed = last_boxed(text)
    text = normalise(text if boxed is None else boxed)
    try:
        return str(int(float(text)))
    except (ValueError, OverflowError):
        return text
