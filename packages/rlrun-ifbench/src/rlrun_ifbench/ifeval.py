"""The instructions of IFEval (https://arxiv.org/abs/2311.07911)."""

import json
import re
from collections.abc import Callable, Mapping, Sequence

from rlrun_ifbench import language

ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_FENCES = ("```json", "```Json", "```JSON", "```")
_POSTSCRIPTS = {"p.p.s": r"p\.\s?p\.\s?s", "p.s.": r"p\.\s?s\."}


def _compared(found: float, relation: str, wanted: float) -> bool:
    """`relation` is "less than" or "at least"; ValueError for any other."""
    if relation == "less than":
        return found < wanted
    if relation == "at least":
        return found >= wanted
    raise ValueError(f'relation is {relation!r}, not "less than" or "at least"')


def keywords(text: str, keywords: Sequence[str]) -> bool:
    """All keywords, whatever their case."""
    return all(re.search(keyword, text, re.IGNORECASE) for keyword in keywords)


def keyword_frequency(text: str, keyword: str, frequency: float, relation: str) -> bool:
    """How often the keyword stands there."""
    return _compared(len(re.findall(keyword.strip(), text, re.IGNORECASE)), relation, frequency)


def forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    """None of the words, as a whole word."""
    return not any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in forbidden_words)


def letter_frequency(text: str, letter: str, let_frequency: float, let_relation: str) -> bool:
    """How often the letter stands there, whatever its case."""
    return _compared(text.lower().count(letter.strip().lower()), let_relation, let_frequency)


def response_language(text: str, language: str) -> bool:
    """The language, as ISO 639-1 names it; a text without letters counts as any."""
    return _is_in(text, language)


def _is_in(text: str, code: str) -> bool:
    import langdetect  # loads profiles of 55 languages

    langdetect.DetectorFactory.seed = 0
    try:
        return bool(langdetect.detect(text) == code)
    except langdetect.LangDetectException:
        return True


def number_of_sentences(text: str, num_sentences: float, relation: str) -> bool:
    """How many sentences there are."""
    return _compared(len(language.sentences(text)), relation, num_sentences)


def number_of_words(text: str, num_words: float, relation: str) -> bool:
    """How many words there are."""
    return _compared(len(language.words(text)), relation, num_words)


def number_of_paragraphs(text: str, num_paragraphs: float) -> bool:
    """Exactly as many paragraphs between lines of `***`, none of them empty."""
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    inner = parts[1:-1]
    return all(inner) and sum(map(bool, parts)) == num_paragraphs


def first_word_of_paragraph(text: str, num_paragraphs: float, nth_paragraph: float, first_word: str) -> bool:
    """Paragraphs between blank lines, and the n-th begins with the word."""
    parts = [part.strip() for part in text.split("\n\n")]
    filled = sum(map(bool, parts))
    if not nth_paragraph <= filled or not parts[int(nth_paragraph) - 1]:
        return False
    begin = parts[int(nth_paragraph) - 1].split()[0].lstrip("'").lstrip('"')
    return filled == num_paragraphs and re.split("[.,?!'\"]", begin)[0].lower() == first_word.lower()


def placeholders(text: str, num_placeholders: float) -> bool:
    """At least as many `[placeholders]`."""
    return len(re.findall(r"\[.*?\]", text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    """The marker, such as `P.S.`, with or without blanks between its letters."""
    marker = postscript_marker.strip().lower()
    return re.search(_POSTSCRIPTS.get(marker, marker), text.lower()) is not None


def bullets(text: str, num_bullets: float) -> bool:
    """Exactly as many lines that begin with `*` or `-`."""
    return len(re.findall(r"^\s*(?:\*[^*].*|-.*)$", text, re.MULTILINE)) == num_bullets


def constrained_response(text: str) -> bool:
    """One of the three answers that IFEval allows."""
    return any(answer in text for answer in ANSWERS)


def highlights(text: str, num_highlights: float) -> bool:
    """At least as many parts in `*one*` or `**two**` asterisks, as IFEval counts them."""
    found = re.findall(r"\*[^\n*]*\*", text) + re.findall(r"\*\*[^\n*]*\*\*", text)
    return sum(bool(part.strip("*").strip()) for part in found) >= num_highlights


def sections(text: str, section_spliter: str, num_sections: float) -> bool:
    """At least as many sections with a numbered heading."""
    return len(re.findall(rf"\s?{section_spliter.strip()}\s?\d+\s?", text)) >= num_sections


def json_format(text: str) -> bool:
    """JSON and nothing else, in a code block or not."""
    text = text.strip()
    fence = next((fence for fence in _FENCES if text.startswith(fence)), "")
    try:
        json.loads(text.removeprefix(fence).removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    """A `<<title>>`."""
    return any(found.strip("<>").strip() for found in re.findall(r"<<[^\n]+>>", text))


def two_responses(text: str) -> bool:
    """Two different responses between `******`."""
    parts = [part.strip() for part in text.split("******")]
    filled = [part for part in parts if part]
    return all(parts[1:-1]) and len(filled) == 2 and filled[0] != filled[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    """The request comes first, word for word."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_phrase(text: str, end_phrase: str) -> bool:
    """The phrase comes last."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def capital_words(text: str, capital_frequency: float, capital_relation: str) -> bool:
    """How many words stand in capitals."""
    return _compared(
        sum(token.isupper() for token in language.tokens(text)), capital_relation, capital_frequency
    )


def english_capitals(text: str) -> bool:
    """English, all in capitals."""
    return text.isupper() and _is_in(text, "en")


def english_lowercase(text: str) -> bool:
    """English, all in small letters."""
    return text.islower() and _is_in(text, "en")


def no_comma(text: str) -> bool:
    """No comma."""
    return "," not in text


def quotation(text: str) -> bool:
    """All in double quotation marks."""
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


CHECKS: Mapping[str, Callable[..., bool]] = {
    "keywords:existence": keywords,
    "keywords:frequency": keyword_frequency,
    "keywords:forbidden_words": forbidden_words,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
    "length_constraints:number_sentences": number_of_sentences,
    "length_constraints:number_paragraphs": number_of_paragraphs,
    "length_constraints:number_words": number_of_words,
    "length_constraints:nth_paragraph_first_word": first_word_of_paragraph,
    "detectable_content:number_placeholders": placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:number_bullet_lists": bullets,
    "detectable_format:constrained_response": constrained_response,
    "detectable_format:number_highlighted_sections": highlights,
    "detectable_format:multiple_sections": sections,
    "detectable_format:json_format": json_format,
    "detectable_format:title": title,
    "combination:two_responses": two_responses,
    "combination:repeat_prompt": repeat_prompt,
    "startend:end_checker": end_phrase,
    "startend:quotation": quotation,
    "change_case:capital_word_frequency": capital_words,
    "change_case:english_capital": english_capitals,
    "change_case:english_lowercase": english_lowercase,
    "punctuation:no_comma": no_comma,
}
