"""Characters that look like those a spec needs and are others: typographic quotes, Cyrillic letters."""

import re
import unicodedata

_QUOTES = dict.fromkeys("“”„‟«»", '"') | dict.fromkeys("‘’‚‛′", "'")
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|#.*")
_WORD = re.compile(r"\w+")
_FOREIGN = ("CYRILLIC", "GREEK")


def look_alike(text: str) -> str | None:
    """Returns what to do about the first such character of a statement; None if there is none.

    Quotes, blanks and any letters outside of strings count; in strings, words that mix Latin letters with
    Cyrillic or Greek ones.
    """
    bare = _QUOTED.sub(lambda found: " " * len(found[0]), text)
    for character in bare:
        if character in _QUOTES:
            return f"{character} is a typographic quotation mark: write {_QUOTES[character]}"
        if not character.isascii():
            return f"{_named(character)}: retype it on a Latin keyboard"
    for word in _WORD.findall(text):
        if re.search("[A-Za-z]", word):
            for character in word:
                if unicodedata.name(character, "").startswith(_FOREIGN):
                    return f"{_named(character)}: retype {word!r} on a Latin keyboard"
    return None


def _named(character: str) -> str:
    name = unicodedata.name(character, "a control character")
    return f"{character!r} (U+{ord(character):04X}) is {name}, not what it looks like"
