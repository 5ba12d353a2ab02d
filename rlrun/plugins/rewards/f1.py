"""Measures word overlap with the label: F1 of SQuAD (arXiv 1606.05250) with the guard of HotpotQA
(1809.09600).
"""

import re
import string
from collections import Counter

from rlrun.plugins.rewards.extraction import last_boxed
from rlrun.plugins.rewards.needs_label import NeedsLabel
from rlrun.plugins.types import Sample
from rlrun.specs.sections.section import Section

GUARDED = {"yes", "no", "noanswer"}

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


class F1Params(Section):
    """Which part of the response is the answer."""

    boxed: bool = False
    r"""Grade only the content of the last `\\boxed{}`; without a box the score is 0."""


class F1(NeedsLabel):
    """Scores the harmonic mean of precision and recall over words, ignoring case, punctuation and articles.

    If the answer or the label is yes, no or noanswer, both must be the same: `yes it is` is not `yes`.
    """

    Params = F1Params
    api_version = 1
    late_score = 0.0

    def __init__(self, params: F1Params) -> None:
        self.params = params

    def score(self, sample: Sample) -> float:
        """Returns the F1 score, from 0 to 1."""
        answer = last_boxed(sample.text) if self.params.boxed else sample.text
        return word_f1(answer or "", str(sample.prompt.row.label))


def word_f1(answer: str, label: str) -> float:
    """Returns the F1 of two texts' words; a word that occurs several times counts each time."""
    answer_words, label_words = words(answer), words(label)
    if answer_words != label_words and {" ".join(answer_words), " ".join(label_words)} & GUARDED:
        return 0.0
    shared = (Counter(answer_words) & Counter(label_words)).total()
    if shared == 0:
        return 0.0
    precision, recall = shared / len(answer_words), shared / len(label_words)
    return 2 * precision * recall / (precision + recall)


def words(text: str) -> list[str]:
    """Returns the words of a text in lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()
