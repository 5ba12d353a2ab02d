"""Checks for the instructions of IFEval (https://arxiv.org/abs/2311.07911)."""

import json
import re
from collections.abc import Callable, Mapping, Sequence

from rlrun_ifbench import language

ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")

_FENCES = ("```json", "```Json", "```JSON", "```")
_POSTSCRIPTS = {"p.p.s": r"p\.\s?p\.\s?s", "p.s.": r"p\.\s?s\."}


def _compared(count: float, relation: str, limit: float) -> bool:
    """Compares by "less than" or "at least". Raises ValueError for any other relation."""
    if relation == "less than":
        return count < limit
    if relation == "at least":
        return count >= limit
    raise ValueError(f'relation is {relation!r}, not "less than" or "at least"')


def keywords(text: str, keywords: Sequence[str]) -> bool:
    """All keywords occur, in upper or lower case."""
    return all(re.search(keyword, text, re.IGNORECASE) for keyword in keywords)


def keyword_frequency(text: str, keyword: str, frequency: float, relation: str) -> bool:
    """The keyword occurs less than, or at least, `frequency` times."""
    return _compared(len(re.findall(keyword.strip(), text, re.IGNORECASE)), relation, frequency)


def forbidden_words(text: str, forbidden_words: Sequence[str]) -> bool:
    """None of the words occurs as a whole word."""
    return not any(re.search(rf"\b{word}\b", text, re.IGNORECASE) for word in forbidden_words)


def letter_frequency(text: str, letter: str, let_frequency: float, let_relation: str) -> bool:
    """The letter occurs less than, or at least, `let_frequency` times, in upper or lower case."""
    return _compared(text.lower().count(letter.strip().lower()), let_relation, let_frequency)


def response_language(text: str, language: str) -> bool:
    """The response is in the language with this ISO 639-1 code; text without letters is in any language."""
    return _is_in(text, language)


def _is_in(text: str, code: str) -> bool:
    import langdetect  # imported late: it loads profiles of 55 languages

    langdetect.DetectorFactory.seed = 0
    try:
        return bool(langdetect.detect(text) == code)
    except langdetect.LangDetectException:
        return True


def number_of_sentences(text: str, num_sentences: float, relation: str) -> bool:
    """The response has less than, or at least, `num_sentences` sentences."""
    return _compared(len(language.sentences(text)), relation, num_sentences)


def number_of_words(text: str, num_words: float, relation: str) -> bool:
    """The response has less than, or at least, `num_words` words."""
    return _compared(len(language.words(text)), relation, num_words)


def number_of_paragraphs(text: str, num_paragraphs: float) -> bool:
    """`***` separates exactly `num_paragraphs` paragraphs, and none between two separators is empty."""
    parts = [part.strip() for part in re.split(r"\s?\*\*\*\s?", text)]
    inner = parts[1:-1]
    return all(inner) and sum(map(bool, parts)) == num_paragraphs


def first_word_of_paragraph(text: str, num_paragraphs: float, nth_paragraph: float, first_word: str) -> bool:
    """Blank lines separate exactly `num_paragraphs` paragraphs, and the n-th begins with the word."""
    parts = [part.strip() for part in text.split("\n\n")]
    filled = sum(map(bool, parts))
    if not nth_paragraph <= filled or not parts[int(nth_paragraph) - 1]:
        return False
    begin = parts[int(nth_paragraph) - 1].split()[0].lstrip("'").lstrip('"')
    return filled == num_paragraphs and re.split("[.,?!'\"]", begin)[0].lower() == first_word.lower()


def placeholders(text: str, num_placeholders: float) -> bool:
    """The response has at least `num_placeholders` placeholders in square brackets."""
    return len(re.findall(r"\[.*?\]", text)) >= num_placeholders


def postscript(text: str, postscript_marker: str) -> bool:
    """The marker, such as `P.S.`, occurs, with or without blanks between its letters."""
    marker = postscript_marker.strip().lower()
    return re.search(_POSTSCRIPTS.get(marker, marker), text.lower()) is not None


def bullets(text: str, num_bullets: float) -> bool:
    """Exactly `num_bullets` lines begin with `*` or `-`."""
    return len(re.findall(r"^\s*(?:\*[^*].*|-.*)$", text, re.MULTILINE)) == num_bullets


def constrained_response(text: str) -> bool:
    """The response contains one of the three answers that IFEval allows."""
    return any(answer in text for answer in ANSWERS)


def highlights(text: str, num_highlights: float) -> bool:
    """At least `num_highlights` parts are in `*one*` or `**two**` asterisks, as IFEval counts them."""
    parts = re.findall(r"\*[^\n*]*\*", text) + re.findall(r"\*\*[^\n*]*\*\*", text)
    return sum(bool(part.strip("*").strip()) for part in parts) >= num_highlights


def sections(text: str, section_spliter: str, num_sections: float) -> bool:
    """At least `num_sections` sections have a numbered heading."""
    return len(re.findall(rf"\s?{section_spliter.strip()}\s?\d+\s?", text)) >= num_sections


def json_format(text: str) -> bool:
    """The response is only JSON, in a code block or not."""
    text = text.strip()
    fence = next((fence for fence in _FENCES if text.startswith(fence)), "")
    try:
        json.loads(text.removeprefix(fence).removesuffix("```").strip())
    except (ValueError, RecursionError):
        return False
    return True


def title(text: str) -> bool:
    """The response has a title in `<<double angle brackets>>`."""
    return any(title.strip("<>").strip() for title in re.findall(r"<<[^\n]+>>", text))


def two_responses(text: str) -> bool:
    """`******` separates two different responses."""
    parts = [part.strip() for part in text.split("******")]
    filled = [part for part in parts if part]
    return all(parts[1:-1]) and len(filled) == 2 and filled[0] != filled[1]


def repeat_prompt(text: str, prompt_to_repeat: str) -> bool:
    """The response begins with the request, word for word."""
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


def end_phrase(text: str, end_phrase: str) -> bool:
    """The response ends with the phrase."""
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


def capital_words(text: str, capital_frequency: float, capital_relation: str) -> bool:
    """Less than, or at least, `capital_frequency` words are in capitals."""
    return _compared(
        sum(token.isupper() for token in language.tokens(text)), capital_relation, capital_frequency
    )


def english_capitals(text: str) -> bool:
    """The response is in English and in capitals."""
    return text.isupper() and _is_in(text, "en")


def english_lowercase(text: str) -> bool:
    """The response is in English and in lower case."""
    return text.islower() and _is_in(text, "en")


def no_comma(text: str) -> bool:
    """The response has no comma."""
    return "," not in text


def quotation(text: str) -> bool:
    """The response is in double quotation marks."""
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
