r"""Mathematical answers as text: one spelling for what LaTeX and plain text can write in many.

"\dfrac12" -> "\frac{1}{2}"    "5\text{ cm}" -> "5"    "1,234" -> "1234"    "7 3/4" -> "(7+3/4)"
"""

import re
from collections.abc import Callable

Replacement = str | Callable[[re.Match[str]], str]

_UNIT = (
    r"inch(?:es)?|f(?:oo|ee)t|yards?|miles?|mph|[ckm]m|kg|(?:kilo|centi|milli)?(?:meter|metre|gram)s?|pounds?|"
    r"(?:second|minute|hour|day|week|month|year)s?|(?:liter|litre|gallon)s?|(?:degree|dollar|cent|unit|point)s?|percent"
)
_POWERS_OF_TEN = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_COMMAND = (
    r"(?:[dtc]?frac|sqrt|pi|times|cdot|div|pm|left|right|begin|end|text\w*|math\w*|[mhf]?box|overline|boxed|"
    r"sin|cos|tan|ln|log|exp|infty|circ|degree|emptyset|varnothing|cup|cap|in|[lgn]eq?|quad|angle|"
    r"alpha|beta|gamma|theta|lambda|omega)(?![a-zA-Z])"
)
_PLAIN_ARGUMENT = r"(?:\{([^{}\\]*)\}|(\\pi|\w))"
_ARGUMENT = r"(?:\{([^{}]*)\}|(\\pi|\w))"


def _scale(found: re.Match[str]) -> str:
    return f"*10^{{{_POWERS_OF_TEN[found[1]]}}}"


def _power_of_ten(found: re.Match[str]) -> str:
    return f"*10^{{{found[1] or found[2]}}}"


def _fraction(found: re.Match[str]) -> str:
    return rf"\frac{{{found[1] or found[2] or ''}}}{{{found[3] or found[4] or ''}}}"


def _rules(*rules: tuple[str, Replacement]) -> list[tuple[re.Pattern[str], Replacement]]:
    return [(re.compile(pattern), replacement) for pattern, replacement in rules]


_RULES = _rules(
    # Data sets that were written as JSON twice have two backslashes before a command.
    (rf"(?<!\\)(?:\\\\)+(?={_COMMAND})", lambda _: "\\"),
    (r"^\\(?:text|mbox)\s*\{([^{}]*)\}$", r"\1"),
    (r"(?:\\\\)+$", ""),
    (r"\s*\\\\\s*(?!\[)", lambda _: r"\\"),
    (r"\\(begin|end)\s*\{bmatrix\}", r"\\\1{pmatrix}"),
    (r"\\?\$|\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])|\\[!]", ""),
    (r"(?<=\d)(?:\\,|\{,\})(?=\d{3})", ""),
    (r"(?<!\\)\\[,;: ]|\\q?quad\b|~", " "),
    (r"\\[dtc]frac", r"\\frac"),
    (r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ|\\degree\b|°|\\?%", ""),
    # What stands after a number is its unit: any words in \text, known units in plain text.
    (r"(?<=[\d})])\s*\\(?:text|mathrm|mbox)\s*\{\s*(?!and\b|or\b)[^{}\d]*\}(?:\^\{?\d\}?)?\s*$", ""),
    (rf"(?<=[\d}})])\s*(?:(?:square|cubic|sq)\s+)?(?:(?:{_UNIT})|(?<=\s)m)(?:\s*\^\s*\{{?\d\}}?)?\s*$", ""),
    (r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|[mh]box)\s*\{([^{}]*)\}", r" \1 "),
    (r"\\overline\s*\{([A-Za-z]+)\}", r"\1"),
    (r"\\(le|ge|ne)q(?![a-zA-Z])", r"\\\1"),
    (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
    (r"_\{(\w)\}", r"_\1"),
    (r"\\([{}])\s*", r"\\\1"),
    (rf"(?<=\d)\s*({'|'.join(_POWERS_OF_TEN)})s?\b", _scale),
    (r"(?<=\d)\s*(?:\\times|\\cdot|[*·×xX])\s*10\s*\^\s*(?:\{\s*([-+]?\d+)\s*\}|([-+]?\d+))", _power_of_ten),
    (r"\s+(?:or|and)\s+", ","),
    (r"^([+-]?\d{1,3}(?:[, ]\d{3})+(?:\.\d+)?)$", lambda found: re.sub("[, ]", "", found[1])),
    (r"\\infty(?![a-zA-Z])|\binfinity\b", "inf"),
    (r"^\s*[a-zA-Z]{1,2}\s*=(?!=)", ""),
    (r"(?<!\d)\.(?=\d)", "0."),
    (r"(?<=\d)\.(?!\d)", ""),
    (rf"\\frac\s*{_PLAIN_ARGUMENT}\s*{_PLAIN_ARGUMENT}", _fraction),
    (rf"\\frac\s*{_ARGUMENT}\s*{_ARGUMENT}", _fraction),
    (r"\\sqrt\s*(\w)", r"\\sqrt{\1}"),
    (r"(?<![\d.])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", r"(\1+\2/\3)"),
    (r"(?<![\d.])(\d+)\s+(\d+)\s*/\s*(\d+)(?!\d)", r"(\1+\2/\3)"),
    (r"(\\[a-zA-Z]+)\s+(?![a-zA-Z])", r"\1"),
    (r"(?<![\da-zA-Z])\s+|\s+(?![\da-zA-Z])", ""),
    (r"\s+", " "),
)


def normalised(answer: str) -> str:
    """The answer without decoration, units, needless spaces and alternatives of spelling."""
    text = answer.strip().removesuffix(".").strip()
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text.strip())
    return text


_SPELLING = _rules(
    (r"\\(?:left|right)(?![a-zA-Z])|\\!|\$", ""),
    (r"(?<!\\)\\[,;: ]|\\q?quad\b|~", " "),
    (r"\s*\\\\\s*", lambda _: r"\\"),
    (r"\\(begin|end)\s*\{bmatrix\}", r"\\\1{pmatrix}"),
    (r"(\\(?:begin|end)\{pmatrix\})\s*", r"\1"),
    (r"\\[dt]frac", r"\\frac"),
    (rf"\\frac\s*{_PLAIN_ARGUMENT}\s*{_PLAIN_ARGUMENT}", _fraction),
    (rf"\\frac\s*{_ARGUMENT}\s*{_ARGUMENT}", _fraction),
    (r"\\sqrt\s*(\w)", r"\\sqrt{\1}"),
)


def spelled(answer: str) -> str:
    """The answer with one spelling for what means the same in LaTeX; nothing is dropped but spaces."""
    text = answer.strip()
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    return text.strip()


def elements(text: str) -> tuple[str, list[str]]:
    """The brackets around a list, pair or interval, and what its commas separate; ("", [text]) for one thing.

    `"(1,2]"` -> `("(]", ["1", "2"])`, `"1,2"` and `"\\{1,2\\}"` -> `("", ["1", "2"])`
    """
    for opening, closing in (("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"), (r"\{", r"\}")):
        if text.startswith(opening) and text.endswith(closing):
            inner = _split(text[len(opening) : -len(closing)])
            if len(inner) > 1:
                return ("" if opening == r"\{" else opening + closing), inner
    return "", _split(text)


def _split(text: str) -> list[str]:
    """Parts between the commas that stand in no bracket; all of the text where brackets don't match."""
    parts, depth, begin = [], 0, 0
    for position, character in enumerate(text):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
            if depth < 0:
                return [text]
        elif character == "," and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    return [*parts, text[begin:]]
