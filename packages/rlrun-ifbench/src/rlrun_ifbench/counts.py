"""Checks for instructions about how often something occurs in a response: `count:…` and `ratio:…`."""

import re
from collections.abc import Callable, Mapping

from rlrun_ifbench import language

CONJUNCTIONS = frozenset({"and", "but", "for", "nor", "or", "so", "yet"})
KEYWORD_COUNTS = (1, 2, 3, 5, 7)
"""How often each keyword of `count:keywords_multiple` must occur, in order."""
OVERLAP_TOLERANCE = 2
"""Percentage points by which `ratio:overlap` may differ from the percentage that the instruction names."""
PERSON_NAMES = frozenset(language.word_list("person_names"))
PRONOUNS = frozenset(language.word_list("pronouns"))
STOP_WORDS = frozenset(language.word_list("stop_words"))

_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")


def word_count_range(text: str, min_words: float, max_words: float) -> bool:
    """The response has between `min_words` and `max_words` words."""
    return min_words <= len(language.words(text)) <= max_words


def unique_words(text: str, N: float) -> bool:
    """The response has at least N different words."""
    return len({language.trimmed(word) for word in text.lower().split()}) >= N


def stop_words(text: str, percentage: float) -> bool:
    """At most `percentage` % of the words are stop words."""
    words = [word.lower() for word in language.words(text)]
    return bool(words) and 100 * sum(word in STOP_WORDS for word in words) / len(words) <= percentage


def two_statements_a_question(text: str) -> bool:
    """Twice as many sentences end with a full stop as with a question mark."""
    statements, questions, _ = _sentence_types(text)
    return statements == 2 * questions


def balanced_sentence_types(text: str) -> bool:
    """The response has equal numbers of statements, questions and exclamations."""
    return len(set(_sentence_types(text))) == 1


def _sentence_types(text: str) -> tuple[int, ...]:
    """Returns the numbers of statements, questions and exclamations."""
    sentences = language.sentences(text)
    return tuple(sum(sentence.endswith(mark) for sentence in sentences) for mark in ".?!")


def conjunctions(text: str, small_n: float) -> bool:
    """At least `small_n` different words are coordinating conjunctions; `And` and `and` are different."""
    return len({word for word in text.split() if language.trimmed(word).lower() in CONJUNCTIONS}) >= small_n


def person_names(text: str, N: float) -> bool:
    """At least N different names of the benchmark's list occur as whole words."""
    return len(PERSON_NAMES & set(language.words(text))) >= N


def overlap(text: str, reference_text: str, percentage: float) -> bool:
    """The reference has `percentage` % (± 2) of the different runs of three characters in the response."""
    runs = _trigrams(text)
    if not runs:
        return False
    share = 100 * len(runs & _trigrams(reference_text)) / len(runs)
    return abs(share - percentage) <= OVERLAP_TOLERANCE


def _trigrams(text: str) -> set[str]:
    return {text[at : at + 3] for at in range(len(text) - 2)}


def numbers(text: str, N: float) -> bool:
    """The response has exactly N numbers. Punctuation is removed first, so that `1,000` is one number."""
    return len(re.findall(r"\d+", language.bare(text))) == N


def punctuation(text: str) -> bool:
    """The response has each of . , ! ? ; : and also an interrobang (?!, !? or ‽)."""
    if not any(mark in text for mark in ("!?", "?!", "‽")):
        return False
    interrobang = "?!" if "?!" in text else "!?"
    return set(".,!?;:") <= set(text.replace(interrobang, "", 1))


def japanese_words(text: str, N: float) -> bool:
    """Every N-th word contains Japanese characters or is a number."""
    every_nth = [language.trimmed(word) for word in text.split()[int(N) - 1 :: int(N)]]
    return all(not word or word.isdigit() or _JAPANESE.search(word) for word in every_nth)


def pronouns(text: str, N: float) -> bool:
    """The response has at least N pronouns."""
    return sum(token in PRONOUNS for token in language.tokens(text.lower().replace("/", " "))) >= N


def keywords_multiple(  # noqa: PLR0917 (the benchmark's own arguments)
    text: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str
) -> bool:
    """The keywords occur 1, 2, 3, 5 and 7 times, counting occurrences inside other words."""
    keywords = (keyword1, keyword2, keyword3, keyword4, keyword5)
    lowered = text.lower()
    return all(
        lowered.count(keyword.strip().lower()) == count
        for keyword, count in zip(keywords, KEYWORD_COUNTS, strict=True)
    )


CHECKS: Mapping[str, Callable[..., bool]] = {
    "count:word_count_range": word_count_range,
    "count:unique_word_count": unique_words,
    "count:conjunctions": conjunctions,
    "count:person_names": person_names,
    "count:numbers": numbers,
    "count:punctuation": punctuation,
    "count:words_japanese": japanese_words,
    "count:pronouns": pronouns,
    "count:keywords_multiple": keywords_multiple,
    "ratio:stop_words": stop_words,
    "ratio:sentence_type": two_statements_a_question,
    "ratio:sentence_balance": balanced_sentence_types,
    "ratio:overlap": overlap,
}
