"""Responses that were written to break a grader: each gets a score."""

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.plugins.registry import build
from rlrun.plugins.rewards.http_client import number_or_table
from rlrun.plugins.testing import sample

REWARDS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "math": ("math", {}),
    "math_verify": ("math_verify", {}),
    "deepscaler": ("deepscaler", {}),
    "dapo": ("dapo", {}),
    "f1": ("f1", {}),
    "gpqa": ("gpqa", {}),
    "boxed gpqa": ("gpqa", {"boxed": True}),
    "exact_match": ("exact_match", {"answer_pattern": r"<a>(\d*)</a>"}),
    "format": ("format", {"pattern": r"<think>.*</think>\s*<answer>.*</answer>"}),
    "repetition": ("repetition", {}),
}
HOSTILE = {
    "nothing": "",
    "a null byte": "\x00",
    "a surrogate": "\ud800",
    "superscripts": "x²³",
    "other digits": "٣٤ ⅷ ① ½",
    "digits": "1" * 5000,
    "a fraction of digits": r"\frac{" + "1" * 4400 + "}{3}",
    "a power tower": "9^{9^{9^{9}}}",
    "zero over zero": r"\frac{0}{0}",
    "zero to a negative power": "0^{-1}",
    "no root": r"\sqrt[0]{2}",
    "a root of nothing": r"\sqrt[-1]{0}",
    "poles": r"\tan(\pi/2)\cot(0)\ln(0)",
    "a factorial of a half": "(0.5)!",
    "an imaginary power": "(i)^{999.5}",
    "not a number": "nan",
    "infinite": "-Infinity",
    "open braces": "{" * 10_000,
    "open parentheses": "(" * 10_000,
    "closing first": "}{)(" * 2000,
    "boxes in boxes": r"\boxed{" * 300 + "}" * 300,
    "white space": " \t" * 50_000,
    "line ends": "\n" * 50_000,
    "signs": "-" * 50_000 + "1",
    "equals": "=" * 10_000,
    "tags": "<think></think><answer>" * 1000,
    "answers": "answer " * 10_000,
    "options": "option " * 10_000 + "A",
    "an empty matrix": r"\begin{pmatrix}\end{pmatrix}",
    "an empty set": r"\{\}",
    "a sine to an imaginary power": r"\sin^{i} x",
    "sines to the power of sines": r"\sin^" * 80 + "2 x",
    "logarithms to bad bases": r"\log_1 2+\log_0 3+\log_{\log_2 1} 4",
    "a large binomial coefficient": r"\binom{10^{9}}{10^{8}}+\binom{-1}{0.5}",
    "a long set": r"\{" + "1/2," * 400 + r"3\}",
    "many signs": r"1\pm" * 80 + "2",
    "many unions": r"(1,2)\cup" * 150 + "(3,4)",
    "many decimals that repeat": r"0.\overline{3}" * 100,
}
MAX_LENGTH_FOR_THE_LIBRARY = 500
"""Longer ones may keep math-verify busy until the sample's time is over, and then score its `late_score`."""
ENDLESS_FOR_THE_LIBRARY = {"a power tower", "a large binomial coefficient"}
WRAPPED = ("{}", r"\boxed{{{}}}", "</think>Answer: {}", "so ${}$.")
PARTS = [
    *"0123456789.,+-*/^_(){}[]!%$&=<>|\\;: aex",
    r"\frac",
    r"\sqrt",
    r"\pi",
    r"\sin",
    r"\text",
    "½",
    r"\pm",
    r"\cup",
    r"\log_",
    r"\binom",
]
MATHEMATICAL = st.lists(st.sampled_from(PARTS)).map("".join)


@cache
def reward(name: str) -> Any:
    plugin, params = REWARDS[name]
    return build("rewards", plugin, params)


def is_scored(name: str, text: str, label: str = "42") -> None:
    try:
        scored = reward(name).score(sample(text, label=label))
    except (RecursionError, MemoryError):  # scoring gives these the reward's late_score
        assert reward(name).late_score == 0
        return
    assert math.isfinite(scored["score"] if isinstance(scored, Mapping) else scored)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(name, text, id=f"{name}: {kind}")
        for name in REWARDS
        for kind, text in HOSTILE.items()
        if name != "math_verify"
        or (len(text) < MAX_LENGTH_FOR_THE_LIBRARY and kind not in ENDLESS_FOR_THE_LIBRARY)
    ],
)
def test_a_hostile_response_is_scored(name: str, text: str) -> None:
    for wrapped in WRAPPED:
        is_scored(name, wrapped.format(text))


@pytest.mark.parametrize("name", [name for name in REWARDS if name != "math_verify"])
@settings(max_examples=60, deadline=None)
@given(text=st.text() | MATHEMATICAL, label=MATHEMATICAL, wrapped=st.sampled_from(WRAPPED))
def test_any_response_is_scored(name: str, text: str, label: str, wrapped: str) -> None:
    is_scored(name, wrapped.format(text), label or "1")


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), 10**400, None, "1", [], {}, {"a": "b"}])
def test_what_a_service_says_must_be_a_number(answer: Any) -> None:
    with pytest.raises(ValueError, match="not a reward"):
        number_or_table(answer)
