"""Instructions about how much of something a response holds: `count:…` and `ratio:…`."""

import re
from collections.abc import Callable, Mapping

from rlrun_ifbench import language

CONJUNCTIONS = frozenset({"and", "but", "for", "nor", "or", "so", "yet"})
KEYWORD_COUNTS = (1, 2, 3, 5, 7)
"""How often `count:keywords_multiple` wants its keywords, in order."""
OVERLAP_TOLERANCE = 2
"""Percentage points that `ratio:overlap` may be off."""
PERSON_NAMES = frozenset(language.word_list("person_names"))
PRONOUNS = frozenset(language.word_list("pronouns"))
STOP_WORDS = frozenset(language.word_list("stop_words"))

_JAPANESE = re.compile("[\u3040-\u30ff\u4e00-\u9fff]")


def word_count_range(text: str, min_words: float, max_words: float) -> bool:
    """Between `min_words` and `max_words` words."""
    return min_words <= len(language.words(text)) <= max_words


def unique_words(text: str, N: float) -> bool:
    """At least N different words."""
    return len({language.trimmed(word) for word in text.lower().split()}) >= N


def stop_words(text: str, percentage: float) -> bool:
    """At most `percentage` % of the words are stop words."""
    found = [word.lower() for word in language.words(text)]
    return bool(found) and 100 * sum(word in STOP_WORDS for word in found) / len(found) <= percentage


def two_statements_a_question(text: str) -> bool:
    """Twice as many sentences end in a full stop as in a question mark."""
    statements, questions, _ = _sentence_types(text)
    return statements == 2 * questions


def balanced_sentence_types(text: str) -> bool:
    """As many statements as questions as exclamations."""
    return len(set(_sentence_types(text))) == 1


def _sentence_types(text: str) -> tuple[int, ...]:
    found = language.sentences(text)
    return tuple(sum(sentence.endswith(mark) for sentence in found) for mark in ".?!")


def conjunctions(text: str, small_n: float) -> bool:
    """At least `small_n` different words that are coordinating conjunctions, as they are written."""
    return len({word for word in text.split() if language.trimmed(word).lower() in CONJUNCTIONS}) >= small_n


def person_names(text: str, N: float) -> bool:
    """At least N different names of the benchmark's list, as whole words."""
    return len(PERSON_NAMES & set(language.words(text))) >= N


def overlap(text: str, reference_text: str, percentage: float) -> bool:
    """The share of the text's different runs of three characters that the reference has too, ± 2 %."""
    runs = _trigrams(text)
    if not runs:
        return False
    share = 100 * len(runs & _trigrams(reference_text)) / len(runs)
    return abs(share - percentage) <= OVERLAP_TOLERANCE


def _trigrams(text: str) -> set[str]:
    return {text[at : at + 3] for at in range(len(text) - 2)}


def numbers(text: str, N: float) -> bool:
    """Exactly N runs of digits once punctuation is gone: `1,000` is one."""
    return len(re.findall(r"\d+", language.bare(text))) == N


def punctuation(text: str) -> bool:
    """Each of . , ! ? ; : beside an interrobang (?!, !? or ‽)."""
    if not any(mark in text for mark in ("!?", "?!", "‽")):
        return False
    interrobang = "?!" if "?!" in text else "!?"
    return set(".,!?;:") <= set(text.replace(interrobang, "", 1))


def japanese_words(text: str, N: float) -> bool:
    """Every N-th word has Japanese characters, or is a number."""
    every_nth = [language.trimmed(word) for word in text.split()[int(N) - 1 :: int(N)]]
    return all(not word or word.isdigit() or _JAPANESE.search(word) for word in every_nth)


def pronouns(text: str, N: float) -> bool:
    """At least N pronouns."""
    return sum(token in PRONOUNS for token in language.tokens(text.lower().replace("/", " "))) >= N


def keywords_multiple(  # noqa: PLR0917 (the benchmark's own arguments)
    text: str, keyword1: str, keyword2: str, keyword3: str, keyword4: str, keyword5: str
) -> bool:
    """The keywords stand there 1, 2, 3, 5 and 7 times, also inside other words."""
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
