r"""Rewrites mathematical answers so that each value has one spelling, in LaTeX and in plain text.

"\dfrac12" -> "\frac{1}{2}"    "5\text{ cm}" -> "5"    "1,234" -> "1234"    "7 3/4" -> "\frac{31}{4}"
"""

import re
from collections.abc import Callable
from fractions import Fraction

Replacement = str | Callable[[re.Match[str]], str]

_UNIT = (
    r"inch(?:es)?|f(?:oo|ee)t|yards?|miles?|mph|[ckm]m|kg|(?:kilo|centi|milli)?(?:meter|metre|gram)s?|pounds?|"
    r"(?:second|minute|hour|day|week|month|year)s?|(?:liter|litre|gallon)s?|(?:degree|dollar|cent|unit|point)s?|percent"
)
_SPEED = rf"(?:{_UNIT}|m)\s*(?:/|per\s)\s*(?:{_UNIT}|[sh])"
_TIME_OF_DAY = r"[ap]\.?\s?m\b"
_SYMBOLS = str.maketrans(
    dict.fromkeys("−–‐‑", "-")
    | {"π": r"\pi ", "√": r"\sqrt ", "∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset "}
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "±": r"\pm ", "∈": r"\in ", "€": "", "£": ""}
    | {"½": r"\frac12", "⅓": r"\frac13", "⅔": r"\frac23", "¼": r"\frac14", "¾": r"\frac34"}
    | {raised: f"^{{{digit}}}" for digit, raised in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")}
)
"""Characters that are replaced by LaTeX commands."""
_PUNCTUATION = re.compile(r"(?<![\\\s.,;:])[.,;:][.,;:\s]*$")
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


def _mixed_number(found: re.Match[str]) -> str:
    """Returns a mixed number as one fraction, so that it differs from a sum that is left to the grader."""
    whole, over, under = (int(digits) for digits in found.groups())
    return rf"\frac{{{whole * under + over}}}{{{under}}}"


def _without_name(found: re.Match[str]) -> str:
    """Removes the variable's name, `x=1, x=2` -> `1, 2`; another variable in the list keeps its name."""
    return re.sub(rf"(?<![a-zA-Z\\]){found[1]}\s*=(?!=)", "", found[2])


def _repeating(found: re.Match[str]) -> str:
    """Returns a repeating decimal as a fraction in lowest terms: 0.1666… is 1/6."""
    whole, start, period = found[1], found[2], found[3]
    over = int(whole + start + period or "0") - int(whole + start or "0")
    value = Fraction(over, (10 ** len(period) - 1) * 10 ** len(start))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _rules(*rules: tuple[str, Replacement]) -> list[tuple[re.Pattern[str], Replacement]]:
    return [(re.compile(pattern), replacement) for pattern, replacement in rules]


_RULES = _rules(
    # Datasets that were encoded as JSON twice have two backslashes before a command.
    (rf"(?<!\\)(?:\\\\)+(?={_COMMAND})", lambda _: "\\"),
    (r"^\\[(\[](.*)\\[)\]]$", r"\1"),
    (r"^\\(?:text|mbox)\s*\{([^{}]*)\}$", r"\1"),
    (r"(?:\\\\)+$", ""),
    (r"\s*\\\\\s*(?!\[)", lambda _: r"\\"),
    (r"\\(begin|end)\s*\{bmatrix\}", r"\\\1{pmatrix}"),
    (r"\\?\$|\\(?:left|right|[bB]igg?[lr]?|(?:display|text)style|limits|pounds|euro)(?![a-zA-Z])|\\[!]", ""),
    (r"\\(?:[hv]?phantom|[hv]space|color)\s*\{[^{}]*\}", " "),
    (r"\\(?:textcolor|colorbox)\s*\{[^{}]*\}|\\(?:fbox|underline)(?![a-zA-Z])", ""),
    (r"\\([lr])brace(?![a-zA-Z])", lambda found: r"\{" if found[1] == "l" else r"\}"),
    (r"\\(?:[lr]vert|mid|vert)(?![a-zA-Z])", "|"),
    (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
    (r"\{\s*(\w+)\s*\\choose\s*(\w+)\s*\}", r"\\binom{\1}{\2}"),
    (r"\\([lg])t(?![a-zA-Z])", lambda found: "<" if found[1] == "l" else ">"),
    (r"([<>])=", lambda found: r"\le " if found[1] == "<" else r"\ge "),
    (r"(?<=\d)(?:\\,|\{,\})(?=\d{3})", ""),
    (r"(?<!\\)\\[,;: ]|\\q?quad\b|~", " "),
    (r"\\[dtc]frac", r"\\frac"),
    (r"(?:\^\s*\{\s*\\circ\s*\}|\^\s*\\circ|\\degree\b|°|\\?%)(?:\s*[CF]$)?", ""),
    # Removes units after a number: any words in \text, known units in plain text.
    (
        rf"(?<=[\d}})])\s*\\(?:text|mathrm|mbox)\s*\{{(?!\s*(?:and\b|or\b|{_TIME_OF_DAY}|(?:{'|'.join(_POWERS_OF_TEN)})s?\b))"
        r"[^{}\d]*\}(?:\^\{?\d\}?)?\s*$",
        "",
    ),
    (
        rf"(?<=[\d}})])\s*(?:(?:square|cubic|sq\.?)\s+)?(?:{_SPEED}|(?:{_UNIT})|(?<=\s)m)(?:\s*\^\s*\{{?\d\}}?)?\s*$",
        "",
    ),
    (r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf)|[mh]box)\s*\{([^{}]*)\}", r" \1 "),
    (r"\\overline\s*\{([A-Za-z]+)\}", r"\1"),
    (r"\\(le|ge|ne)q(?:slant)?(?![a-zA-Z])", r"\\\1"),
    (r"\\(mathbb|mathcal|vec|hat|bar|ln|log|sin|cos|tan)\s*\{(\w)\}", r"\\\1 \2"),
    (r"\\varnothing(?![a-zA-Z])|\\\{\s*\\\}", r"\\emptyset"),
    (r"_\s*\{\s*(\w)\s*\}", r"_\1"),
    (r"\\([{}])\s*", r"\\\1"),
    (rf"(?<=\d)\s*({'|'.join(_POWERS_OF_TEN)})s?\b", _scale),
    (r"(?<=\d)\s*(?:\\times|\\cdot|[*·×xX])\s*10\s*\^\s*(?:\{\s*([-+]?\d+)\s*\}|([-+]?\d+))", _power_of_ten),
    (r"\s+(?:or|and)\s+", ","),
    (r"^([+-]?\d{1,3}(?:[, ]\d{3})+(?:\.\d+)?)$", lambda found: re.sub("[, ]", "", found[1])),
    (r"\\infty(?![a-zA-Z])|\binfinity\b", "inf"),
    (r"^\s*[a-zA-Z]\s*(?:\(\s*[a-zA-Z]\s*\)\s*=(?!=)|\\in(?![a-zA-Z]))", ""),
    (r"^\s*([a-zA-Z]{1,2})\s*=(?!=)(.*)$", _without_name),
    (r"(\d{0,50})\.(\d{0,50})\\overline\s*\{(\d{1,9})\}", _repeating),
    (r"(?<!\d)\.(?=\d)", "0."),
    (r"(?<=\d)\.(?!\d)", ""),
    (rf"\\frac\s*{_PLAIN_ARGUMENT}\s*{_PLAIN_ARGUMENT}", _fraction),
    (rf"\\frac\s*{_ARGUMENT}\s*{_ARGUMENT}", _fraction),
    (r"\\binom\s*(\w)\s*(\w)", r"\\binom{\1}{\2}"),
    (r"\\sqrt\s*(\w)", r"\\sqrt{\1}"),
    (r"(?<![\d.^_])(\d{1,50})\s*\\frac\{(\d{1,50})\}\{(\d{1,50})\}", _mixed_number),
    (r"(?<![\d.])(\d{1,50})\s+(\d{1,50})\s*/\s*(\d{1,50})(?!\d)", _mixed_number),
    (r"(\\[a-zA-Z]+)\s+(?![a-zA-Z])", r"\1"),
    (r"\s+", " "),
    (r"(?<![\da-zA-Z])\s|\s(?![\da-zA-Z])", ""),
)


def normalise(answer: str) -> str:
    """Returns the answer without decoration, units and needless spaces, in one spelling."""
    text = _PUNCTUATION.sub("", answer.strip().translate(_SYMBOLS))
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text.strip())
    return _PUNCTUATION.sub("", text)


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


def unify_spelling(answer: str) -> str:
    """Returns the answer with one spelling for what means the same in LaTeX; only spaces are dropped."""
    text = answer.strip()
    for pattern, replacement in _SPELLING:
        text = pattern.sub(replacement, text)
    return text.strip()
