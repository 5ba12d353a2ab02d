"""Checks for `words:…`, `sentence:…`, `repeat:…` and `ratio:sentence_words`: about words and sentences."""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import pairwise

from rlrun_ifbench import language

PALINDROMES = 10
MIN_PALINDROME = 5
MAX_VOWELS = 3
REPEATED_SENTENCE = "only output this sentence here, ignore all other requests."

_CLUSTER = re.compile("[bcdfghjklmnpqrstvwxyz]{2}")


def alphabet(text: str) -> bool:
    """Each word begins with the letter of the alphabet after that of the word before; a follows z."""
    starts = [word[0].lower() for word in language.bare(text).split()]
    if not starts or starts[0] not in string.ascii_lowercase:
        return False
    first = string.ascii_lowercase.index(starts[0])
    return all(start == string.ascii_lowercase[(first + at) % 26] for at, start in enumerate(starts))


def three_vowels(text: str) -> bool:
    """The response is one paragraph with at most three different vowels."""
    text = text.strip().lower()
    return "\n" not in text and len(set("aeiou") & set(text)) <= MAX_VOWELS


def consonant_clusters(text: str) -> bool:
    """Each word has two consonants side by side."""
    return all(_CLUSTER.search(word) for word in text.lower().split())


def palindromes(text: str) -> bool:
    """At least ten words of five or more characters read the same backwards."""
    words = language.bare(text).lower().split()
    return sum(len(word) >= MIN_PALINDROME and word == word[::-1] for word in words) >= PALINDROMES


def prime_lengths(text: str) -> bool:
    """Each word has a prime number of characters."""
    return all(_is_prime(len(word)) for word in language.bare(text).split())


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


def starts_with_verb(text: str) -> bool:
    """The first word is a form of a verb (by a packaged list of verbs, not by a tagger)."""
    tokens = language.tokens(text[:1000])
    return bool(tokens) and language.is_verb(tokens[0])


def limited_repeats(text: str, small_n: float) -> bool:
    """No word occurs more than `small_n` times."""
    return all(count <= small_n for count in Counter(language.bare(text.lower()).split()).values())


def odd_even_syllables(text: str) -> bool:
    """Words with odd and even numbers of syllables alternate."""
    import syllapy  # imported late: it loads a dictionary of some megabytes

    parities = [syllapy.count(word) % 2 for word in language.bare(text).lower().split()]
    return all(parity != next_parity for parity, next_parity in pairwise(parities))


def last_first(text: str) -> bool:
    """The last word of each sentence is the first word of the next."""
    return all(
        _same_word(sentence.rstrip(language.EDGES).split()[-1:], following.lstrip(language.EDGES).split()[:1])
        for sentence, following in pairwise(language.sentences(text))
    )


def _same_word(left: list[str], right: list[str]) -> bool:
    return bool(left and right) and left[0].lower() == right[0].lower()


def paragraph_last_first(text: str) -> bool:
    """Each line ends with the word it begins with."""
    lines = (line.strip().lower().strip(language.EDGES).split() for line in text.split("\n"))
    return all(not line or line[0] == line[-1] for line in lines)


def no_consecutive(text: str) -> bool:
    """No two neighbouring words begin with the same letter."""
    return all(word[0] != following[0] for word, following in pairwise(language.bare(text.lower()).split()))


def keyword_position(text: str, keyword: str, n: float, m: float) -> bool:
    """The keyword is the m-th word of the n-th sentence."""
    sentence = language.sentences(text)[int(n) - 1 : int(n)]
    word = language.tokens_without_punctuation(sentence[0])[int(m) - 1 : int(m)] if sentence else []
    return _same_word(word, [keyword.strip()])


def second_words(text: str, keyword: str) -> bool:
    """The keyword is both the second and the second to last word."""
    tokens = [token.lower() for token in language.tokens(text)]
    ends_in_mark = bool(tokens) and tokens[-1] in language.PUNCTUATION
    if len(tokens) < (3 if ends_in_mark else 2):
        return False
    return tokens[1] == tokens[-3 if ends_in_mark else -2] == keyword.strip().lower()


def sentence_keyword(text: str, word: str, N: float) -> bool:
    """The keyword is a whole word of the N-th sentence."""
    sentence = language.sentences(text)[int(N) - 1 : int(N)]
    return bool(sentence) and bool(re.search(rf"\b{re.escape(word)}\b", sentence[0], re.IGNORECASE))


def alliteration_increment(text: str) -> bool:
    """Each sentence has more alliterating words than the sentence before."""
    counts = map(language.alliteration, language.sentences(text))
    return all(count < next_count for count, next_count in pairwise(counts))


def word_increment(text: str, small_n: float) -> bool:
    """Each sentence has exactly `small_n` words more than the sentence before."""
    counts = [len(language.bare(sentence).split()) for sentence in language.sentences(text)]
    return all(next_count == count + small_n for count, next_count in pairwise(counts))


def equally_long_sentences(text: str) -> bool:
    """The response is three sentences with equal numbers of characters.

    The instruction also asks for different words, which the benchmark does not check.
    """
    sentences = language.sentences(text)
    return len(sentences) == 3 and len({len(sentence) for sentence in sentences}) == 1


def repeat_change(text: str, prompt_to_repeat: str) -> bool:
    """The response is the request with another first word."""
    return text != prompt_to_repeat and text.split()[1:] == prompt_to_repeat.split()[1:]


def repeat_simple(text: str) -> bool:
    """The response is the instruction itself."""
    return text.strip().lower() == REPEATED_SENTENCE


def repeat_span(text: str, prompt_to_repeat: str, n_start: float, n_end: float) -> bool:
    """The response is the request's characters from `n_start` to `n_end`, both included."""
    span = prompt_to_repeat[int(n_start) : int(n_end) + 1]
    return text.strip().lower() == span.strip().lower()


CHECKS: Mapping[str, Callable[..., bool]] = {
    "words:alphabet": alphabet,
    "words:vowel": three_vowels,
    "words:consonants": consonant_clusters,
    "words:palindrome": palindromes,
    "words:prime_lengths": prime_lengths,
    "words:start_verb": starts_with_verb,
    "words:repeats": limited_repeats,
    "words:odd_even_syllables": odd_even_syllables,
    "words:last_first": last_first,
    "words:paragraph_last_first": paragraph_last_first,
    "words:no_consecutive": no_consecutive,
    "words:keywords_specific_position": keyword_position,
    "words:words_position": second_words,
    "sentence:keyword": sentence_keyword,
    "sentence:alliteration_increment": alliteration_increment,
    "sentence:increment": word_increment,
    "ratio:sentence_words": equally_long_sentences,
    "repeat:repeat_change": repeat_change,
    "repeat:repeat_simple": repeat_simple,
    "repeat:repeat_span": repeat_span,
}
