"""Grading against what one would use instead: math-verify called plainly, and a pool without deadlines.

    python benchmarks/grading.py [--samples 300] [--rounds 3] [--deadline 1.0] [--horizon 20]
    python benchmarks/grading.py --samples 5000 --rounds 1 --only verdicts

One JSON line per result. `verdicts`: verdicts per CPU-second in one process, wrong ones, and those that
differ from the library's, for math-verify called plainly, `math_verify`, `math_verify` without its quick
verdicts, and `math`. `deadlines`: with 0, 1 and 10 % of samples that hang, healthy samples per second that
rlrun's reward processes score, and `multiprocessing.Pool`, which is given up after `--horizon` seconds.
"""

import argparse
import asyncio
import json
import logging
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.plugins.registry import build
from rlrun.plugins.types import Prompt, Row, Sample, Status
from rlrun.runner.scoring.scorer import Scorer
from rlrun.specs.local_code import ALLOW_LOCAL
from rlrun.specs.sections.scoring import RewardSpec, ScoringSpec

HANGS = "this one hangs"
LOCAL_REWARD = f'''
import time
from rlrun.plugins.rewards.math_verify import MathVerify

class Hanging(MathVerify):
    """math_verify that hangs where the response says so."""

    def score(self, sample):
        if sample.text == {HANGS!r}:
            time.sleep(1e6)
        return super().score(sample)
'''
Case = tuple[str, str]
"""A label and a response."""


def main() -> None:
    """Prints the result of every case."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deadline", type=float, default=1.0)
    parser.add_argument("--horizon", type=float, default=20.0)
    parser.add_argument("--only", choices=["verdicts", "deadlines"])
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    made = [make_case(random.Random(number)) for number in range(arguments.samples)]
    cases, truth = [case for case, _ in made], [right for _, right in made]
    if arguments.only != "deadlines":
        for result in verdicts(cases, truth, arguments.rounds):
            print(json.dumps(result), flush=True)
    if arguments.only == "verdicts":
        return
    for share in (0.0, 0.01, 0.1):
        print(json.dumps(goodput(cases, share, arguments.deadline, arguments.horizon)), flush=True)


def make_case(dice: random.Random) -> tuple[Case, bool]:
    """A label and a response, over the kinds of answers that datasets have, and whether it is right.

    A third of the answers are drawn anew, and so are nearly always wrong.
    """
    label, answer, value = _answer(dice)
    given = value
    if dice.random() < 1 / 3:
        _, answer, given = _answer(dice)
    reasoning = "We compute step by step. " * dice.randint(1, 40)
    return (label, f"{reasoning}So the final answer is $\\boxed{{{answer}}}$."), given == value


def _answer(dice: random.Random) -> tuple[str, str, object]:
    """A value in two spellings, and in a form that equals that of the same value in any spelling."""
    a, b, c = dice.randint(1, 50), dice.randint(2, 30), dice.randint(2, 9)
    return dice.choice(
        [
            (str(a), str(a), Fraction(a)),
            (rf"\frac{{{a}}}{{{b}}}", f"{a}/{b}", Fraction(a, b)),
            (rf"{c}\sqrt{{{b}}}", rf"\sqrt{{{b * c * c}}}", _root(b * c * c)),
            (f"({a}, {b})", rf"\left({a},{b}\right)", ("pair", a, b)),
            (f"{a}x^2+{b}x+{c}", f"{c}+{b}x+{a}x^{{2}}", ("polynomial", a, b, c)),
            (rf"{a}\%", str(a / 100), Fraction(a, 100)),
            (f"[{a}, {a + b})", f"[{a},{a + b})", ("interval", a, a + b)),
            (rf"\{{{a},{a + b}\}}", rf"\{{{a + b},{a}\}}", ("set", a, a + b)),
            (rf"\frac{{{a}\pi}}{{{b}}}", rf"{a}\pi/{b}", ("pi", Fraction(a, b))),
            (
                rf"\begin{{pmatrix}}{a}&{b}\\{b}&{a}\end{{pmatrix}}",
                rf"\begin{{pmatrix}} {a} & {b} \\ {b} & {a} \end{{pmatrix}}",
                ("matrix", a, b),
            ),
            (f"{c}^{{{c}}}", str(c**c), Fraction(c**c)),
            (f"x={a}", str(a), Fraction(a)),
            (rf"{a}\text{{ cm}}", str(a), Fraction(a)),
            (f"(x-{a})(x+{b})", f"x^2+{b - a}x-{a * b}", ("polynomial", 1, b - a, -a * b)),
        ]
    )


def _root(square: int) -> object:
    whole = math.isqrt(square)
    return Fraction(whole) if whole * whole == square else ("root", square)


def verdicts(cases: Sequence[Case], truth: Sequence[bool], rounds: int) -> Iterator[dict[str, object]]:
    """Yields how fast and how right each grader is, one process each, on the same cases."""
    from math_verify import parse, verify

    samples = samples_of(cases)

    def plain() -> list[bool]:
        return [bool(verify(parse(f"${label}$"), parse(response))) for label, response in cases]

    def by_reward(name: str, *, quick: bool = True) -> list[bool]:
        reward: Any = build("rewards", name, {})
        if not quick:
            reward._quick = lambda boxed, label: None
        return [bool(reward.score(sample)) for sample in samples]

    graders: dict[str, Callable[[], list[bool]]] = {
        "math-verify, called plainly": plain,
        "math_verify": lambda: by_reward("math_verify"),
        "math_verify without quick verdicts": lambda: by_reward("math_verify", quick=False),
        "math": lambda: by_reward("math"),
    }
    rates: dict[str, list[float]] = {name: [] for name in graders}
    given: dict[str, list[bool]] = {}
    for _ in range(rounds):
        for name, grade in graders.items():
            given[name], rate = _rate(grade)
            rates[name].append(rate)
    library = given["math-verify, called plainly"]
    for name, found in given.items():
        yield {
            "what": name,
            "verdicts per CPU-second": round(statistics.median(rates[name]), 1),
            "wrong": sum(one != other for one, other in zip(found, truth, strict=True)),
            "wrongly accepted": sum(one and not other for one, other in zip(found, truth, strict=True)),
            "different from math-verify": sum(
                one != other for one, other in zip(found, library, strict=True)
            ),
            "samples": len(cases),
        }


def _rate(grade: Callable[[], list[bool]]) -> tuple[list[bool], float]:
    begin = time.process_time()
    verdicts = grade()
    return verdicts, len(verdicts) / (time.process_time() - begin)


def goodput(cases: Sequence[Case], share: float, deadline: float, horizon: float) -> dict[str, object]:
    """Healthy samples a second where a share of the samples hangs."""
    dice = random.Random(7)
    hanging = set(dice.sample(range(len(cases)), round(share * len(cases))))
    mixed = [(label, HANGS if at in hanging else response) for at, (label, response) in enumerate(cases)]
    ours, seconds = asyncio.run(_with_deadlines(mixed, deadline))
    pool, pool_seconds = _without_deadlines(mixed, horizon)
    return {
        "what": "healthy samples per second, 2 processes",
        "hanging": share,
        "rlrun": round(ours / seconds, 1),
        "rlrun finished": f"{ours} of {len(cases) - len(hanging)}",
        "pool": round(pool / pool_seconds, 1),
        "pool finished": f"{pool} of {len(cases) - len(hanging)}",
        "deadline": deadline,
    }


async def _with_deadlines(cases: Sequence[Case], deadline: float) -> tuple[int, float]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "hanging_reward.py"
        file.write_text(LOCAL_REWARD)
        os.environ[ALLOW_LOCAL] = "1"
        scoring = ScoringSpec(workers=2, timeout=deadline, on_error="drop")
        scorer = Scorer([RewardSpec(type=f"{file}:Hanging")], scoring)
        await scorer.start()
        try:
            samples = samples_of(cases)
            begin = time.perf_counter()
            await scorer.score(samples)
            seconds = time.perf_counter() - begin
        finally:
            await scorer.close()
    return sum(bool(np.isfinite(sample.reward)) for sample in samples), seconds


def _without_deadlines(cases: Sequence[Case], horizon: float) -> tuple[int, float]:
    """What a plain pool has finished when all is done, or at the horizon; warm before the clock runs."""
    with multiprocessing.get_context("forkserver").Pool(2, initializer=_import_library) as pool:
        pool.map(_grade, [("1", "$\\boxed{1}$")] * 8)
        begin = time.perf_counter()
        results = [pool.apply_async(_grade, (case,)) for case in cases]
        while time.perf_counter() < begin + horizon and not all(result.ready() for result in results):
            time.sleep(0.01)
        seconds = time.perf_counter() - begin
        return sum(result.ready() for result in results), seconds


def _import_library() -> None:
    import math_verify  # noqa: F401


def _grade(case: Case) -> bool:
    from math_verify import parse, verify

    if case[1] == HANGS:
        time.sleep(1e6)
    return bool(verify(parse(f"${case[0]}$"), parse(case[1])))


def samples_of(cases: Sequence[Case]) -> list[Sample]:
    """Finished samples, each with a prompt of its own."""
    empty, tokens = np.zeros(1, np.float32), np.zeros(1, np.int32)
    return [
        Sample(
            f"{at}-0",
            Prompt(Row(str(at), "a question", label), at, tokens),
            *(tokens, empty, empty, (), Status.COMPLETED),
            response,
        )
        for at, (label, response) in enumerate(cases)
    ]


if __name__ == "__main__":
    main()
