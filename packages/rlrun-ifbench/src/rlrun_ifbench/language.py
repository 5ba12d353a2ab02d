"""English as the instruction checks see it: words, tokens, sentences, verbs, alliteration."""

import itertools
import re
import string
from functools import cache
from importlib.resources import files

PUNCTUATION = string.punctuation
EDGES = PUNCTUATION + " "
"""The characters that are removed from the ends of a word."""

_NO_PUNCTUATION = str.maketrans("", "", PUNCTUATION)
_BOUNDARY = re.compile(r"(?P<end>[.!?]+)[)\]}\"'”’]*(?=\s+(?P<next>\S+))")
_LAST_WORD = re.compile(r"\S*$")
_SPLITS = (
    (re.compile(r"([;@#$%&?!\"“”()\[\]{}<>]|\.\.+|--+)"), r" \1 "),
    (re.compile(r"([:,])(?!\d)"), r" \1 "),
    (re.compile(r"(?<![.\s])(\.)([\])}>\"']*)\s*$"), r" \1 \2 "),
    (re.compile(r"(?<=\S)('(?=\s|$))"), r" \1 "),
    (re.compile(r"(?<=\w)('(?:s|m|d|re|ve|ll)|n't)\b", re.IGNORECASE), r" \1"),
)


def word_list(name: str) -> list[str]:
    """Returns one of the lists in `word_lists.txt`, in its order."""
    text = files(__package__).joinpath("word_lists.txt").read_text(encoding="utf-8")
    return text.partition(f"[{name}]")[2].partition("[")[0].split()


ABBREVIATIONS = frozenset(word_list("abbreviations"))


def bare(text: str) -> str:
    """Returns the text without ASCII punctuation."""
    return text.translate(_NO_PUNCTUATION)


def trimmed(word: str) -> str:
    """Returns a word without the punctuation and blanks at its ends."""
    return word.strip(EDGES)


def words(text: str) -> list[str]:
    """Returns the runs of letters, digits and underscores, which IFEval counts as words."""
    return re.findall(r"\w+", text)


def tokens(text: str) -> list[str]:
    """Returns words and punctuation marks as the Penn Treebank splits them: `don't` is `do`, `n't`."""
    result: list[str] = []
    for sentence in sentences(text):
        for pattern, replacement in _SPLITS:
            sentence = pattern.sub(replacement, sentence)  # noqa: PLW2901
        result += sentence.split()
    return result


def tokens_without_punctuation(text: str) -> list[str]:
    """Returns the tokens that are not only punctuation."""
    return [token for token in tokens(text) if token.strip(PUNCTUATION + "“”‘’…")]


def sentences(text: str) -> list[str]:
    """Returns the sentences of a text, each with its closing punctuation and quotation marks."""
    complete, begin = [], 0
    for boundary in _BOUNDARY.finditer(text):
        if _ends_a_sentence(text, boundary):
            complete.append(text[begin : boundary.end()].strip())
            begin = boundary.end()
    return [sentence for sentence in [*complete, text[begin:].strip()] if sentence]


def _ends_a_sentence(text: str, boundary: re.Match[str]) -> bool:
    """Returns whether a sentence ends at punctuation.

    A full stop after an abbreviation or an initial does not end one, and an ellipsis only before a capital.
    """
    marks, following = boundary["end"], boundary["next"].lstrip("\"'(“‘*_")
    if "!" in marks or "?" in marks:
        return True
    if len(marks) > 1:
        return following[:1].isupper()
    last = _LAST_WORD.search(text, max(0, boundary.start() - 40), boundary.start())
    word = last[0].lstrip("\"'(“‘*_[").lower() if last else ""
    if word == "etc":
        return following[:1].isupper()
    is_initial = len(word) == 1 and word.isalpha() and word != "i"
    return word not in ABBREVIATIONS and not is_initial


def alliteration(sentence: str) -> int:
    """Counts the words in runs of neighbouring words with the same first letter."""
    starts = [word.lstrip(EDGES)[0] for word in sentence.lower().split() if word.lstrip(EDGES)]
    count, running = 0, False
    for start, next_start in itertools.pairwise(starts):
        if start == next_start:
            count += 1 if running else 2
        running = start == next_start
    return count


def is_verb(word: str) -> bool:
    """Returns whether a word is a form of a verb that can begin a sentence."""
    return word.lower() in _verb_forms()


@cache
def _verb_forms() -> frozenset[str]:
    """Returns every form of the verbs in `verbs.txt`. A line is a verb and its irregular forms."""
    forms: set[str] = set()
    lines = files(__package__).joinpath("verbs.txt").read_text(encoding="utf-8").splitlines()
    for line in lines:
        verb, *irregular = line.split()
        forms |= {verb, *irregular, *_regular_forms(verb)}
    return frozenset(forms)


def _regular_forms(verb: str) -> set[str]:
    if verb.endswith("e"):
        stem = verb[:-2] + "y" if verb.endswith("ie") else verb[:-1]
        return {verb + "s", verb + "d", stem + "ing"}
    if verb.endswith("y") and verb[-2] not in "aeiou":
        return {verb[:-1] + "ies", verb[:-1] + "ied", verb + "ing"}
    plural = verb + ("es" if verb.endswith(("s", "x", "z", "ch", "sh", "o")) else "s")
    doubled = verb + verb[-1]
    return {plural, verb + "ed", verb + "ing", doubled + "ed", doubled + "ing"}
