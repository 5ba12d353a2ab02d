"""Each reward on answers of its own kind, and on answers that mean harm."""

import tracemalloc
from typing import Any

import pytest
import sympy
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlrun.plugins.registry import PluginError, build, load
from rlrun.plugins.rewards.extraction import last_boxed, last_match
from rlrun.plugins.rewards.math_grading.equivalence import same_answer, split_elements
from rlrun.plugins.rewards.math_grading.latex import normalise
from rlrun.plugins.testing import check_reward, sample
from rlrun.plugins.types import Row, Sample

BILLION_DIGITS = "9^{9^{9}}"


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        (r"7\frac34", "31/4"),
        ("x=5", "5"),
        ("y = 2x+1", "2x+1"),
        (r"\frac{x^2-1}{x-1}", "x+1"),
        (r"\{1,2\}", r"\{1, 2\}"),
        (r"[0,\frac12)", "[0, 0.5)"),
        (r"\text{even}", "even"),
        ("1{,}000", "1000"),
        (r"1\,000", "1000"),
        ("1,234,567.5", "1234567.5"),
        ("5 m", "5"),
        (r"12\text{ cm}^2", "12"),
        (r"\$5", "5"),
        ("(E)", "E"),
        ("sqrt(2)/2", r"\frac{\sqrt2}{2}"),
        ("10^{-3}", ".001"),
        (r"\frac{-1}{2}", r"-\frac12"),
        (r"\left(\frac12, 3\right)", "(0.5,3)"),
        (r"\log_{2}8", r"\log_{2}8"),
        ("x_1+x_2", "x_2+x_1"),
        ("1/0", "1/0"),
        (r"2\cdot 3\times x\div 2", "3x"),
        ("(-\\infty, 3)", r"(-\infty,3)"),
        ("Paris", "paris"),
        (r"\text{None}", "none"),
        ("ab", "ba"),
        ("x y", "yx"),
        ("BC", "CB"),
        (r"\text{No}", "(no)"),
        ("pi", r"\pi"),
        (r"a\cdot b\cdot d", "abd"),
        ("5/2", "2.5"),
        (r"2\frac12", "2.5"),
        (r"\frac{-5}{2}", "-2.5"),
        (r"-\left(\frac{1}{2}\right)", "-0.5"),
        (r"\frac{1}{2^{10}}", r"\frac{1}{1024}"),
        ("2^{-1}", "0.5"),
        ("2.50", "2.5"),
        (r"12.5\%", r"\frac18"),
        (r"2\frac12 million", "2500000"),
        ("42", "42.0"),
        (r"\{1,2\}", "1, 2"),
        (r"1\text{ and }2", "1,2"),
        (r"\begin{bmatrix} 1 \\ 2 \end{bmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (r"x \leq 5", r"x\le5"),
        (r"3 \pm 2 \sqrt{2}", r"3\pm2\sqrt{2}"),
        ("10 000", "10000"),
        (r"42\\", "42"),
        (r"\overline{AB}", "AB"),
        (r"\text{12 cm}", "12"),
        ("2^{10}", "1024"),
        ("5 million", "5000000"),
        ("i^2x", "-x"),
        ("52_{8}", "52_8"),
        (r"\varnothing", r"\emptyset"),
        (r"3 \times 10^5", "300000"),
        (r"3\times10^{5}", "300,000"),
        (r"1.5 \cdot 10^{ 6 }", "1500000"),
        ("-2.5 × 10^3", "-2500"),
        ("3x10^5", "3e5"),
        ("3 * 10^5", r"3 \times 10^5"),
        (r"4\times 10^{-4}", "0.0004"),
        (r"5000\times 10^{-3}", "5"),
        (r"6.02 \times 10^{23}", "602000000000000000000000"),
        (r"\tfrac{1}{2} +\! \frac1{72}", r"\\dfrac{1}{2} +\frac{1}{72}"),
        (r"\sqrt{2}", r"\\sqrt{2}"),
        (r"\left(\frac12, \pi\right)", r"\\left( \\frac{1}{2}, \\pi \\right)"),
        (r"\begin{pmatrix}1\\x\end{pmatrix}", r"\\begin{pmatrix} 1 \\ x \\end{pmatrix}"),
        (r"12\text{ cm}", r"12 \\text{ cm}"),
        (r"\{3,2,1\}", r"\{1,2,3\}"),
        (r"\{\frac12,0\}", r"\left\lbrace 0, 0.5 \right\rbrace"),
        (r"3 \pm \sqrt{8}", r"3\pm 2\sqrt2"),
        (r"3 + \sqrt{2}, 3 - \sqrt{2}", r"3\pm\sqrt{2}"),
        (r"\pm 3", "-3, 3"),
        (r"\frac{1\mp\sqrt5}{2}", r"\frac{1\pm\sqrt{5}}{2}"),
        (r"\begin{pmatrix} \frac12 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix}0.5&2\\3&2^2\end{bmatrix}"),
        (r"(1,2) \cup (-\infty, \frac12]", r"(-\infty,0.5]\cup(1,2)"),
        (r"x \in [1,2)", "[1,2)"),
        ("x >= 3", r"x \geqslant 3"),
        (r"x \le 3", "x ≤ 3"),
        (r"\emptyset", r"\{\}"),
        ("2π", r"2\pi"),
        ("2√3", r"2\sqrt{3}"),
        ("−5", "-5"),
        ("½", r"\frac12"),
        ("x² + 3×10⁵", "x^2+300000"),
        (r"\lvert x \rvert", "|x|"),
        (r"\displaystyle\frac{1}{2}", "1/2"),
        (r"\(5\)", "5"),
        (r"\[5\]", "5"),
        (r"\textcolor{red}{5}\hspace{1cm}", "5"),
        (r"\fbox{5}", "5"),
        ("€5", "£5"),
        ("5; ", "5,"),
        (r"5 \text{ million}", "5000000"),
        ("15 m/s", "15"),
        (r"18^\circ C", "18"),
        (r"12:30\text{ p.m.}", "12:30 p.m."),
        (r"0.1\overline{6}", r"\frac16"),
        ("x=1, x=2", "1,2"),
        (r"x=1 \text{ or } x=2", "1,2"),
        ("f(x)=x^2", "x^2"),
        ("f(x)=x", "x"),
        (r"\log_{2}{3}", r"\frac{\ln 3}{\ln 2}"),
        (r"\cos^2 x", r"(\cos x)^{2}"),
        (r"\dbinom{n}{2}", r"\frac{n(n-1)}{2}"),
        (r"{n \choose 2}", r"\binom{n}{2}"),
        (r"\vec{v}", r"\vec v"),
        (r"25\%", "0.25"),
        (r"100 \%", "1"),
        (r"x^2\frac12", r"\frac{x^2}{2}"),
    ],
)
def test_the_same_in_another_spelling(answer: str, label: str) -> None:
    assert same_answer(answer, label)
    assert same_answer(label, answer)


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("[0,1)", "(0,1)"),
        ("2,1", "1,2"),
        ("even", "neve"),
        ("no", "on"),
        ("No", "on"),
        ("(no)", "on"),
        ("n o", "on"),
        (r"\text{no}", r"\text{on}"),
        (r"o\cdot n", "no"),
        ("it", "ti"),
        ("am", "ma"),
        ("up", "pu"),
        ("NE", "EN"),
        ("yes", r"s\cdot e\cdot y"),
        ("(dog)", "(god)"),
        ("3m", "3"),
        ("0.333", "1/3"),
        ("x^2", "x"),
        ("-x", "x"),
        (r"\sqrt{x^2}", "x"),
        ("7 3/4", "73/4"),
        ("12 34", "1234"),
        ("1/0", "2/0"),
        ("", ""),
        ("x", ""),
        ("1", "1,2"),
        (r"\unknown{3}", "3"),
        ("3)", "3"),
        ("(3", "3"),
        ("2+", "2"),
        ("1/0", "1"),
        ("x*1/0", "x"),
        ("500!", "1"),
        ("1.5!", "1"),
        (r"3 \times 10^5", "30000"),
        (r"3 \times 10^5", "3105"),
        (r"\begin{pmatrix}1\\x\end{pmatrix}", r"\begin{pmatrix}1x\end{pmatrix}"),
        (r"\\frac12", r"\\frac13"),
        ("(3,2,1)", "(1,2,3)"),
        (r"\{1,2\}", r"\{1,2,3\}"),
        (r"\{1,1,2\}", r"\{1,2,2\}"),
        (r"3\pm\sqrt2", r"3+\sqrt2"),
        ("3,3", r"\pm3"),
        (r"\begin{pmatrix}1&2\\4&3\end{pmatrix}", r"\begin{pmatrix}1&2\\3&4\end{pmatrix}"),
        (r"\begin{pmatrix}1&2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        (r"(1,2)\cup(3,4)", r"(1,2]\cup(3,4)"),
        (r"(1,2)\cup(3,4)", "(1,2)"),
        ("x>3", r"x\ge3"),
        (r"5\text{ million}", "5"),
        (r"12:30\text{ a.m.}", r"12:30\text{ p.m.}"),
        ("y=1,x=2", "x=1,y=2"),
        (r"0.\overline{3}", "0.3"),
        (r"\log_2 3", r"\log_3 2"),
        (r"\sin^{-1}x", r"\frac{1}{\sin x}"),
        (r"\binom{n}{2}", r"\binom{n}{3}"),
        (r"5\%", "0.5"),
        (r"5\%", r"500\%"),
        ("x²", "x2"),
        (r"x^2\frac12", r"x^{2.5}"),
    ],
)
def test_not_the_same(answer: str, label: str) -> None:
    assert not same_answer(answer, label)
    assert not same_answer(label, answer)


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("40+2", "42"),
        ("6*7", "42"),
        (r"\frac{84}{2}", "42"),
        ("5!", "120"),
        (r"\binom52", "10"),
        (r"\log_2 8", "3"),
        (r"\sin^2 x+\cos^2 x", "1"),
        (r"\sqrt{16}", "4"),
        (r"3 \times 100000", "300000"),
        (r"3 \times 10", "30"),
        ("2/4", "1/2"),
        (r"\frac{2}{4}", r"\frac12"),
        (r"(1,\frac{2}{4})", r"(1,\frac12)"),
        ("40+2", "42.0"),
        ("40+2", "42.00"),
        ("84/2", "42.0"),
        ("1.25+1.25", "2.5"),
        ("0.25*2", "0.5"),
        ("3-0.5", "2.5"),
        ("(2+1/2)", "2.5"),
        ("2/4", "0.5"),
        (r"\frac{0.25}{0.5}", "0.5"),
        (r"\frac{1.0}{2}", r"\frac12"),
        (r"\frac14+\frac14", r"\frac12"),
        ("1-1/2", "1/2"),
        ("2^{3}5", "40"),
        ("42/1", "42"),
        (r"\frac{21}{2^{-1}}", "42"),
        (r"\sqrt{16}", "4.0"),
        ("(41+2/2)", "42"),
        (r"(4\cdot2,\frac12)", "(8,0.5)"),
        (r"\{0.5+0.5,2\}", r"\{1,2\}"),
        ("250000+250000", "5*10^{5}"),
        (r"2\frac24", "2.5"),
        (r"\frac{\sqrt[3]{8}}{3}", r"\frac23"),
        (r"\frac{\frac12}{3}", r"\frac16"),
        (r"\sin\frac\pi6", "0.5"),
    ],
)
def test_an_answer_has_to_be_worked_out(answer: str, label: str) -> None:
    assert not same_answer(answer, label)
    assert same_answer(label, answer)


CONSTANTS = st.integers(-9, 9).map(sympy.Integer)
ATOMS = st.sampled_from([*sympy.symbols("x y n"), sympy.pi, sympy.sqrt(3)]) | CONSTANTS
EXPRESSIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(lambda left, right: left + right, inner, inner),
        st.builds(lambda left, right: left * right, inner, inner),
        st.builds(lambda base, exponent: base**exponent, inner, st.integers(2, 3)),
        st.builds(lambda over, under: over / under, inner, st.integers(2, 9)),
    ),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@example(sympy.Symbol("x") * sympy.Symbol("y"))
@given(expression=EXPRESSIONS)
def test_whatever_sympy_writes_is_read(expression: sympy.Expr) -> None:
    written = sympy.latex(expression)
    for other in (sympy.expand(expression), sympy.factor(expression)):
        assert same_answer(sympy.latex(other), written)
        assert not same_answer(sympy.latex(other + sympy.Rational(1, 997)), written)
    assert same_answer(str(expression).replace("**", "^"), written)


@pytest.mark.parametrize(
    "answer",
    [
        BILLION_DIGITS,
        "9^9^9^9^9^9",
        "9**9**9**9",
        "1e999999999",
        "10^{999}^{999}",
        r"\cos(10^{999}*10^{999})",
        "e^{e^{e^{e^{e}}}}",
        "exp(exp(exp(exp(9))))",
        "200!!!!",
        "7^" * 150 + "7",
        "-" * 399 + "1",
        "(" * 190 + "1" + ")" * 190,
        r"\sqrt{" * 60 + "2" + "}" * 60,
        r"\frac{1}{" * 60 + "2" + "}" * 60,
        r"\frac{" * 200,
        "1" * 100_000,
        "1," * 100_000,
        " " * 1_000_000 + "1",
        "$" * 1_000_000,
        r"\text{" * 100_000,
        "a" * 1_900,
        "1 " * 900,
        "{1}" * 130,
        "{" * 10_000_000,
        "__import__('os').system('true')",
        "().__class__.__bases__[0]",
        "\x00\ud800",
    ],
    ids=lambda answer: answer[:20].encode("unicode_escape").decode(),
)
def test_answers_that_mean_harm_score_0_in_little_memory(answer: str) -> None:
    response = "\\boxed{" + answer + "}"
    math = build("rewards", "math", {})
    tracemalloc.start()
    try:
        assert math.score(sample(response, label="42", length=1)) == 0
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_normalised_spellings() -> None:
    assert normalise(r" $\dfrac12$. ") == r"\frac{1}{2}"
    assert normalise("3 hours and 5 minutes") == "3 hours,5"
    assert normalise("7 3/4") == r"\frac{31}{4}"


def test_elements() -> None:
    assert split_elements("(1,f(2,3)]") == ("(]", ["1", "f(2,3)"])
    assert split_elements("1,2") == ("", ["1", "2"])
    assert split_elements("(1)") == ("", ["(1)"])
    assert split_elements("1),(2") == ("", ["1),(2"])


def test_math_can_ignore_the_thinking() -> None:
    thought = sample(r"<think>\boxed{42}</think> so \boxed{41}", label=42)
    undecided = sample(r"<think>\boxed{42}</think> hm", label=42)
    assert check_reward("math", {"cut_thinking": True}, [thought, undecided]) == [0, 0]
    assert check_reward("math", {}, [thought, undecided]) == [0, 1]


def test_a_row_without_label_scores_0() -> None:
    assert check_reward("math", {}, [sample(r"\boxed{}"), sample(r"\boxed{None}")]) == [0, 0]


def test_last_boxed() -> None:
    assert last_boxed(r"\boxed{1} \boxed{\frac{1}{2}} tail}") == r"\frac{1}{2}"
    assert last_boxed(r"\boxed{1} \boxed{2") is None
    assert last_boxed("no box") is None


def test_last_match() -> None:
    assert last_match("a=1 a=2", r"a=(\d)") == "2"
    assert last_match("a=1 a=2", r"a=\d") == "a=2"
    assert last_match("<answer>\n4\n</answer>", "<answer>(.*?)</answer>") == "4"
    assert last_match("nothing", r"a=(\d)") is None
    assert last_match(" all ", None) == "all"


@pytest.mark.parametrize(
    ("params", "text", "label", "expected"),
    [
        ({}, " 42\n", 42, 1),
        ({}, "the answer: 42", "42", 0),
        ({"answer_pattern": "answer: (.*)"}, "the answer: 42", "42", 1),
        ({"answer_pattern": "answer: (.*)"}, "42", "42", 0),
        ({}, "Paris", "paris", 0),
        ({"ignore_case": True}, "Paris", "paris", 1),
        ({"words": True}, "The  Eiffel tower.", "Eiffel Tower", 1),
        ({"words": True}, "the Eiffel tower in Paris", "Eiffel Tower", 0),
        ({"words": True}, "an Eiffel-tower", ["la tour Eiffel", "Eiffeltower"], 1),
        ({"words": True}, "the", "a", 0),
        ({"words": True, "answer_pattern": "<answer>(.*?)</answer>"}, "<answer> 7 </answer>", [6, 7], 1),
    ],
)
def test_exact_match(params: dict[str, Any], text: str, label: object, expected: float) -> None:
    assert check_reward("exact_match", params, [sample(text, label=label)]) == [expected]


def test_exact_match_names_what_cannot_be_compared() -> None:
    kind = load("rewards", "exact_match")
    kind.check_row(kind.Params(words=True), Row("0", "q", label=["a", "Rome"]))
    for label in ([], ["a", "!"], "A", {"value": 2}, None):
        with pytest.raises(ValueError, match="compares"):
            kind.check_row(kind.Params(words=True), Row("0", "q", label=label))
    with pytest.raises(PluginError, match="ignore_case has no effect with words = true"):
        build("rewards", "exact_match", {"words": True, "ignore_case": True})


def gym_sample(text: str, **params: Any) -> Sample:
    row = build("data", "reasoning_gym", {"task": "chain_sum", "size": 3, **params})[0]
    return sample(text.replace("ANSWER", row.label), label=row.label, metadata=row.metadata)


def test_reasoning_gym_scores_as_the_task_does() -> None:
    right, partly, wrong = gym_sample("ANSWER"), gym_sample("it is ANSWER"), gym_sample("hm")
    scores = check_reward("reasoning_gym", {}, [right, partly, wrong])
    assert scores[0] == 1
    assert 0 < scores[1] < 1
    assert scores[2] == 0
    assert check_reward("reasoning_gym", {"threshold": 1}, [right, partly, wrong]) == [1, 0, 0]
    assert check_reward("reasoning_gym", {"answer_pattern": "is (.*)"}, [right, partly, wrong]) == [0, 1, 0]


def test_reasoning_gym_asks_for_its_own_rows() -> None:
    with pytest.raises(ValueError, match="use the reasoning_gym data source"):
        build("rewards", "reasoning_gym", {}).score(sample("4"))


def test_format() -> None:
    params = {"pattern": r"<think>.*</think>\s*<answer>.*</answer>"}
    good, bad = "<think>\nhm\n</think>\n<answer>4</answer> ", "<answer>4</answer>"
    assert check_reward("format", params, [sample(good), sample(bad)]) == [1, 0]


def test_length_grows_to_a_full_penalty() -> None:
    lengths = [sample("x", length=length) for length in (0, 80, 85, 100, 120)]
    assert check_reward("length", {"max_tokens": 100, "buffer": 20}, lengths) == [0, 0, -0.25, -1, -1]


def test_random_is_random_across_samples_only() -> None:
    samples = [sample("x", id=f"0-{number}") for number in range(400)]
    scores = check_reward("random", {"probability": 0.25}, samples)
    assert 60 < sum(scores) < 140
    assert check_reward("random", {"probability": 0.25, "seed": 1}, samples) != scores


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("format", {"pattern": "("}, "pattern: .*not a regular expression"),
        ("format", {}, "pattern: required and not given"),
        ("length", {"max_tokens": 4, "buffer": 5}, r"buffer \(5\) is larger than max_tokens \(4\)"),
        ("reasoning_gym", {"threshold": 2}, "threshold: must be at most 1"),
        ("math", {"cut_thinkin": True}, "cut_thinkin: unknown key .*`cut_thinking`"),
    ],
)
def test_wrong_parameters_are_named(name: str, params: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build("rewards", name, params)


@pytest.mark.parametrize(
    ("text", "label", "metadata", "expected"),
    [
        ("I think Paris", "B", {"choices": ["London", "Paris"]}, 1),
        ("I think it is London", "B", {"choices": ["London", "Paris"]}, 0),
        ("A is wrong, so the answer is (B).", "B", {}, 1),
        ("The answer is a dog", "A", {}, 0),
        ("Rather B than C. **C**", 2, {}, 1),
        ("Answer: B", "Paris", {"choices": ["London", "Paris"]}, 1),
        ("", "A", {}, 0),
        ("b.", "B", {}, 1),
        ("option a is right", "A", {}, 1),
        ("Answer: B", 1.0, {}, 1),
        ("It is Paris", "x", {"answer_text": "Paris"}, 1),
        ("A is correct, B is not", "A", {}, 1),
        ("so b is the correct one", 1, {}, 1),
        ("A is not correct, and D is right.", "D", {}, 1),
    ],
)
def test_gpqa_settles_on_a_letter(text: str, label: Any, metadata: dict[str, Any], expected: float) -> None:
    assert check_reward("gpqa", {}, [sample(text, label=label, metadata=metadata)]) == [expected]


def test_repetition_costs_its_share() -> None:
    texts = ["a b c d e f", "a b a b a b", "word", "x " * 101]
    scores = check_reward("repetition", {"ngram": 2, "penalty": 2}, [sample(text) for text in texts])
    assert scores == [0, pytest.approx(-2 * 3 / 5), 0, pytest.approx(-2 * 99 / 100)]


@pytest.mark.parametrize(
    ("response", "label", "right", "pred"),
    [
        ("Answer: 40 + 2 = 42", "42", True, "42"),
        ("Answer: 1,234", "1,234", True, "1234"),
        ('Answer: **an "42"**', r"\boxed{42}", True, "42"),
        ("Answer: 42 apples", "42", False, "42 apples"),
        ("Answer: 84/2", "42", False, "84/2"),
        ("42", "42", False, "[INVALID]"),
    ],
)
def test_dapo_says_what_it_graded(response: str, label: str, right: bool, pred: str) -> None:
    (score,) = check_reward("dapo", {}, [sample(response, label=label)])
    assert score == {"score": 1 if right else -1, "acc": float(right), "pred": pred}


@pytest.mark.parametrize(
    ("response", "calls", "score"),
    [
        (r"so \boxed{42}", 0, 1.0),
        ("Answer: 42", 2, -1.0),
        (r"\boxed{41}", 0, -1.1),
        (r"\boxed{41}", 6, -0.8),
        (r"\boxed{42} or \boxed{41}", 40, -0.6),
    ],
)
def test_dapo_reads_a_box_and_values_calls_of_tools(response: str, calls: int, score: float) -> None:
    """As the reward of slime's example of ReTool."""
    one = sample(response, label="42")
    one.info["tool_calls"] = calls
    (found,) = check_reward("dapo", {"boxed": True, "tool_bonus": 0.05}, [one])
    assert found["score"] == pytest.approx(score)


def test_dapo_says_what_calls_of_tools_are() -> None:
    one = sample("no box", label="42")
    one.info["tool_calls"] = ["search"]
    with pytest.raises(ValueError, match=r"tool_bonus counts info\.tool_calls, which is \['search'\]: note"):
        build("rewards", "dapo", {"tool_bonus": 0.05}).score(one)
