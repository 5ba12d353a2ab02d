"""Checks for instructions that are complete tasks: `custom:…`."""

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Mapping
from itertools import pairwise

from rlrun_ifbench import language

AFRICAN_COUNTRIES = 52
CAPITALS = tuple(language.word_list("capitals"))
"""Capitals of Europe north of 45°, from north to south."""
LONGEST_MONTHS = {4: 30, 6: 30, 9: 30, 11: 30, 2: 29}
NAPOLEON = range(1769, 1822)

_QUESTION = re.compile(r"\n*Question \d+[.|):;]?\s*")
_OPTION = re.compile(r"[A-Ea-e][.|)]\s*\w+")
_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})")
_SPECIAL = re.compile(r"\".*[^\d\w\s].*\"")


def multiples(text: str) -> bool:
    """The numbers in the response are the multiples of 7 from 14 to 49."""
    return re.findall(r"\d+", text) == [str(number) for number in range(14, 50, 7)]


def questions(text: str) -> bool:
    """The response has four questions with five options, each longer than the question before."""
    if not text.startswith("Question"):
        return False
    parts = [part.strip() for part in _QUESTION.split(text) if part.strip()]
    shapes = [_question_shape(part) for part in parts]
    return (
        len(shapes) == 4
        and all(options == 5 for _, options in shapes)
        and all(length < next_length for (length, _), (next_length, _) in pairwise(shapes))
    )


def _question_shape(question: str) -> tuple[int, int]:
    """Returns the length of a question and the number of its options."""
    lines = [line.strip() for line in question.split("\n")]
    options = [at for at, line in enumerate(lines) if _OPTION.match(line)]
    asked = lines[: options[0]] if options else lines
    return len(" ".join(asked).strip()), len(options)


def countries_reversed(text: str) -> bool:
    """At least 52 lines, beginning with Zimbabwe, are in reverse alphabetical order."""
    lines = [line for line in map(language.trimmed, text.split("\n")) if line]
    first = next((at for at, line in enumerate(lines) if "Zimbabwe" in line), len(lines))
    listed = [_ascii(line) for line in lines[first:]]
    return len(listed) >= AFRICAN_COUNTRIES and listed == sorted(listed, reverse=True)


def words_reversed(text: str) -> bool:
    """Read backwards word by word, the response names the bald eagle."""
    forwards = " ".join(language.bare(text.lower().strip()).split()[::-1])
    return "bald eagle" in forwards


def characters_reversed(text: str) -> bool:
    """The response has the words `bald eagle` spelt backwards."""
    return "elgae dlab" in text.lower()


def sentence_alphabet(text: str) -> bool:
    """The response is 26 sentences that begin with the letters of the alphabet in order."""
    starts = [sentence[0].lower() for sentence in language.sentences(text)]
    return "".join(starts) == "abcdefghijklmnopqrstuvwxyz"


def capitals(text: str) -> bool:
    """The response lists the northern capitals of Europe from north to south, separated by commas."""
    return [name.strip() for name in _ascii(text).split(",") if name.strip()] == list(CAPITALS)


def csv_city(text: str) -> bool:
    """The response is a header and seven rows of five fields."""
    rows = _rows(text)
    return (
        len(rows) == 8
        and rows[0] == ["ID", "Country", "City", "Year", "Count"]
        and all(len(row) == 5 for row in rows)
    )


def csv_special_character(text: str) -> bool:
    """The response is a header and 14 rows of five fields, with a special character in a quoted field."""
    if not _has_header(text, ("ProductID", "Category", "Brand", "Price", "Stock"), r",[ \t]*"):
        return False
    rows = _rows(text.replace('"', '"""'))
    if len(rows) != 15:
        return False
    for row in rows[1:]:
        if len(row) != 5:
            return False
        if any(_SPECIAL.match(field) for field in row):
            return True
    return False


def csv_quotes(text: str) -> bool:
    """The response is a header and three rows of five tab-separated fields, each in quotation marks."""
    if not _has_header(text, ("StudentID", "Subject", "Grade", "Semester", "Score"), "\t *"):
        return False
    rows = _rows(text.replace('"', '"""'), delimiter="\t")
    fields = [field.strip() for row in rows for field in row]
    return (
        len(rows) == 4
        and all(len(row) == 5 for row in rows)
        and all(field[:1] == '"' == field[-1:] for field in fields)
    )


def _has_header(text: str, names: tuple[str, ...], separator: str) -> bool:
    pattern = separator.join(f'(?:{name}|"{name}")' for name in names)
    return re.fullmatch(pattern, text.split("\n", maxsplit=1)[0].strip()) is not None


def _rows(text: str, delimiter: str = ",") -> list[list[str]]:
    try:
        return list(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        return []


def dates(text: str) -> bool:
    """The response lists dates of Napoleon's lifetime as YYYY-MM-DD, separated by commas."""
    return all(_is_napoleonic(date.strip()) for date in text.strip().split(","))


def _is_napoleonic(date: str) -> bool:
    match = _DATE.fullmatch(date)
    if match is None:
        return False
    year, month, day = map(int, match.groups())
    return year in NAPOLEON and month <= 12 and day <= LONGEST_MONTHS.get(month, 31)


def _ascii(text: str) -> str:
    """Returns the text with its letters stripped of accents and other non-ASCII characters removed."""
    return unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")


CHECKS: Mapping[str, Callable[..., bool]] = {
    "custom:multiples": multiples,
    "custom:mcq_count_length": questions,
    "custom:reverse_newline": countries_reversed,
    "custom:word_reverse": words_reversed,
    "custom:character_reverse": characters_reversed,
    "custom:sentence_alphabet": sentence_alphabet,
    "custom:european_capitals_sort": capitals,
    "custom:csv_city": csv_city,
    "custom:csv_special_character": csv_special_character,
    "custom:csv_quotes": csv_quotes,
    "custom:date_format_list": dates,
}
