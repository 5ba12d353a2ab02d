"""The `math_verify` reward gives the library's verdicts, with the library or without it."""

import pytest

from rlrun.plugins.registry import build
from rlrun.plugins.rewards.math_grading.quick_verdict import quick_verdict
from rlrun.plugins.testing import check_reward, sample


@pytest.mark.parametrize(
    ("label", "response", "expected"),
    [
        (r"\frac12", r"It is $\boxed{0.5}$.", 1),
        ("75\\%", r"$\boxed{0.75}$", 1),
        (r"\{1,2\}", r"$\boxed{\{2,1\}}$", 1),
        ("x=5", r"$\boxed{5}$", 1),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"$\boxed{\begin{bmatrix} 1 & 3 \end{bmatrix}}$", 0),
        ("7", r"so the answer is $7$", 1),
        ("7", "no idea", 0),
        ("12", r"$\boxed{12 \text{ cm}}$", 1),
        (r"The answer is $\boxed{3}$", r"$\boxed{3}$", 1),
        ("", r"$\boxed{3}$", 0),
        (None, r"$\boxed{3}$", 0),
        ("(1,2)", r"$\boxed{1} and \boxed{2}$", 1),
    ],
)
def test_verdicts(label: str | None, response: str, expected: float) -> None:
    assert check_reward("math_verify", {}, [sample(response, label=label)]) == [expected]


ANSWERS = [
    *(
        r"75\%",
        "0.75",
        "75",
        "(1,2)",
        "(2,1)",
        r"\{1,2\}",
        r"\{2,1\}",
        "[1,2)",
        "x",
        "X",
        "2x",
        "2y",
        "x=5",
        "5",
    ),
    *(
        r"\frac13",
        "0.333333",
        "1,000",
        "1000",
        "1e3",
        "x+1",
        "1+x",
        "ab",
        "ba",
        "5!",
        "120",
        r"7\frac{3}{4}",
        "31/4",
    ),
    *(r"\sqrt{16}", "4", r"\begin{pmatrix}1&2\end{pmatrix}", r"\frac{\pi}{2}", r"0.5\pi"),
]


def test_quick_verdicts_are_the_librarys() -> None:
    """Every pair of answers that a quick verdict dares to judge."""
    from math_verify import parse, verify

    parsed = {
        text: (parse(f"${text}$", parsing_timeout=None), parse(f"$\\boxed{{{text}}}$", parsing_timeout=None))
        for text in ANSWERS
    }
    judged = 0
    for label in ANSWERS:
        for answer in ANSWERS:
            verdict = quick_verdict(answer, label)
            if verdict is not None:
                judged += 1
                gold, given = parsed[label][0], parsed[answer][1]
                assert verdict == verify(gold, given, timeout_seconds=None), (label, answer)
    assert judged > len(ANSWERS) ** 2 / 2


def test_settings_reach_the_library() -> None:
    rough = build("rewards", "math_verify", {"float_rounding": 2})
    assert rough.score(sample(r"$\boxed{0.333}$", label=r"\frac13")) == 1
    assert build("rewards", "math_verify", {}).score(sample(r"$\boxed{0.333}$", label=r"\frac13")) == 0
