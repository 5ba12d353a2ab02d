"""Checks for instructions about the form of a response: `format:…`."""

import re
import string
from collections.abc import Callable, Mapping
from itertools import pairwise

from rlrun_ifbench import language

DEEPEST_PARENTHESES = 5
DEEPEST_QUOTES = 3
TEMPLATE = ("My Answer:", "My Conclusion:", "Future Outlook:")

_CLOSING = {")": "(", "]": "[", "}": "{"}
_LETTERED = re.compile(r"\W*[aA]\W*[bB]\W*[cC]\W*")
_ITALICS = re.compile(r"<(?:i|em)>(?P<thesis>.*?)</(?:i|em)>(?P<rest>.*)", re.DOTALL)


def parentheses(text: str) -> bool:
    """Brackets of any kind are nested five deep, and the innermost pair is closed."""
    open_brackets: list[str] = []
    deepest = 0
    for character in text:
        if character in "([{":
            open_brackets.append(character)
            deepest = max(deepest, len(open_brackets))
        elif character in _CLOSING:
            if not open_brackets or open_brackets.pop() != _CLOSING[character]:
                open_brackets, deepest = [], 0
            elif deepest >= DEEPEST_PARENTHESES:
                return True
    return False


def quotes(text: str) -> bool:
    """Double and single quotation marks are nested three deep and closed again."""
    open_quotes: list[str] = []
    deepest = 0
    for character in text:
        if open_quotes and character == open_quotes[-1]:
            open_quotes.pop()
            if deepest - len(open_quotes) >= DEEPEST_QUOTES:
                return True
        elif character in "\"'":
            open_quotes.append(character)
            deepest = max(deepest, len(open_quotes))
    return False


def options(text: str, options: str) -> bool:
    """The response is one of the options; options with letters (`a), b), c)`) must match exactly."""
    separator = "/" if "/" in options else "or" if "or" in options else ","
    choices = [option.strip() for option in options.split(separator)]
    if _LETTERED.match(options):
        return text in choices
    return language.trimmed(text).lower() in {language.trimmed(choice).lower() for choice in choices}


def one_word_a_line(text: str) -> bool:
    """The response has one word on each line."""
    plain = language.bare(text).strip()
    return sum(line != "" for line in plain.split("\n")) == len(plain.split())


def emoji_after_sentences(text: str) -> bool:
    """Each sentence ends with an emoji, before or after its full stop."""
    sentences = [language.bare(sentence).strip() for sentence in language.sentences(text)]
    for sentence, following in zip(sentences, [*sentences[1:], ""], strict=True):
        if not sentence:
            return False
        if not any(map(_is_emoji, sentence[-2:])) and not _is_emoji(following[:1]):
            return False
    return True


def _is_emoji(character: str) -> bool:
    import emoji  # imported late: it loads a table of every emoji

    return bool(emoji.is_emoji(character))


def stairs(text: str) -> bool:
    """Each line is indented more than the line before."""
    indents = [len(line) - len(line.lstrip(" ")) for line in text.split("\n") if line.strip()]
    return all(indent < next_indent for indent, next_indent in pairwise(indents))


def explained_quotes(text: str) -> bool:
    """Text follows each quotation: no other quotation follows directly, and none ends the response."""
    squeezed = "".join(text.replace("“", '"').replace("”", '"').replace("'\"'", "").split())
    ending = squeezed.strip(string.digits + string.punctuation.replace('"', ""))
    return '""' not in squeezed and not ending.endswith('"')


def listed(text: str, sep: str) -> bool:
    """The separator occurs at least twice."""
    return text.count(sep) >= 2


def italic_thesis(text: str) -> bool:
    """There is text inside `<i>` or `<em>`, and text after it."""
    match = _ITALICS.search(text)
    return match is not None and bool(match["thesis"].strip() and match["rest"].strip())


def sub_bullets(text: str) -> bool:
    """A `-` follows each `*` before the next `*`."""
    return all("-" in bullet for bullet in text.split("*")[1:])


def sentences_then_bullets(text: str) -> bool:
    """At least two sentences come first, then at least two bullet points: lines that begin with `*`.

    No line is blank, except for one before the bullet points.
    """
    lines = [line.strip() for line in text.split("\n")]
    first = next((at for at, line in enumerate(lines) if line.startswith("*")), len(lines))
    prose, bullets = lines[:first], lines[first:]
    if prose and not prose[-1]:
        prose.pop()
    sentences = sum(len(language.sentences(line)) for line in prose)
    return (
        all(prose) and sentences >= 2 and len(bullets) >= 2 and all(line.startswith("*") for line in bullets)
    )


def title_case(text: str) -> bool:
    """No word is in lower case, and none has only its first letter in lower case."""
    return not any(
        token[0].isalpha()
        and token[0].islower()
        and (not token[1:] or token[1:].islower() or token[1:].isupper())
        for token in language.tokens(text)
    )


def template(text: str) -> bool:
    """The response has the three labels of the template."""
    return all(label in text for label in TEMPLATE)


def no_whitespace(text: str) -> bool:
    """The response has no white space."""
    return not any(character.isspace() for character in text)


CHECKS: Mapping[str, Callable[..., bool]] = {
    "format:parentheses": parentheses,
    "format:quotes": quotes,
    "format:options": options,
    "format:newline": one_word_a_line,
    "format:emoji": emoji_after_sentences,
    "format:line_indent": stairs,
    "format:quote_unquote": explained_quotes,
    "format:list": listed,
    "format:thesis": italic_thesis,
    "format:sub-bullets": sub_bullets,
    "format:no_bullets_bullets": sentences_then_bullets,
    "format:title_case": title_case,
    "format:output_template": template,
    "format:no_whitespace": no_whitespace,
}
