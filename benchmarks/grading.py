"""Grading against what one would use instead: math-verify called plainly, and a pool without deadlines.

    python benchmarks/grading.py [--samples 300] [--rounds 3] [--deadline 1.0] [--horizon 20]

One JSON line a result: verdicts a CPU-second in one process and how many differ; then, with 0, 1 and 10 % of
samples that hang, healthy samples scored a second by rlrun's reward processes and by `multiprocessing.Pool`,
which is given up after `--horizon` seconds.
"""

import argparse
import asyncio
import json
import logging
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rlrun.plugins.registry import ALLOW_LOCAL, build
from rlrun.plugins.types import Prompt, Row, Sample, Status
from rlrun.runner.scoring.scorer import Scorer
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


def main() -> None:
    """Print every result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--deadline", type=float, default=1.0)
    parser.add_argument("--horizon", type=float, default=20.0)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    cases = [make_case(random.Random(number)) for number in range(arguments.samples)]
    print(json.dumps(throughput(cases, arguments.rounds)), flush=True)
    for share in (0.0, 0.01, 0.1):
        print(json.dumps(goodput(cases, share, arguments.deadline, arguments.horizon)), flush=True)


def make_case(dice: random.Random) -> Case:
    """A label and a response, a third of them wrong, over the kinds of answers that datasets have."""
    label, answer = _answer(dice)
    if dice.random() < 1 / 3:
        answer = _answer(dice)[1]
    reasoning = "We compute step by step. " * dice.randint(1, 40)
    return label, f"{reasoning}So the final answer is $\\boxed{{{answer}}}$."


def _answer(dice: random.Random) -> Case:
    """One value in two spellings."""
    a, b, c = dice.randint(1, 50), dice.randint(2, 30), dice.randint(2, 9)
    return dice.choice(
        [
            (str(a), str(a)),
            (rf"\frac{{{a}}}{{{b}}}", f"{a}/{b}"),
            (rf"{c}\sqrt{{{b}}}", rf"\sqrt{{{b * c * c}}}"),
            (f"({a}, {b})", rf"\left({a},{b}\right)"),
            (f"{a}x^2+{b}x+{c}", f"{c}+{b}x+{a}x^{{2}}"),
            (rf"{a}\%", str(a / 100)),
            (f"[{a}, {a + b})", f"[{a},{a + b})"),
            (rf"\{{{a},{a + b}\}}", rf"\{{{a + b},{a}\}}"),
            (rf"\frac{{{a}\pi}}{{{b}}}", rf"{a}\pi/{b}"),
            (
                rf"\begin{{pmatrix}}{a}&{b}\\{b}&{a}\end{{pmatrix}}",
                rf"\begin{{pmatrix}} {a} & {b} \\ {b} & {a} \end{{pmatrix}}",
            ),
            (f"{c}^{{{c}}}", str(c**c)),
            (f"x={a}", str(a)),
            (rf"{a}\text{{ cm}}", str(a)),
            (f"(x-{a})(x+{b})", f"x^2+{b - a}x-{a * b}"),
        ]
    )


def throughput(cases: Sequence[Case], rounds: int) -> dict[str, object]:
    """Verdicts a CPU-second of the library and of the reward, one process each, the same cases."""
    from math_verify import parse, verify

    def plain(label: str, response: str) -> bool:
        return bool(verify(parse(f"${label}$"), parse(response)))

    samples = samples_of(cases)
    library, ours, different = [], [], 0
    for _ in range(rounds):
        expected, rate = _rate(lambda: [plain(*case) for case in cases])
        library.append(rate)
        reward = build("rewards", "math_verify", {})
        found, rate = _rate(lambda reward=reward: [bool(reward.score(sample)) for sample in samples])
        ours.append(rate)
        different = sum(one != other for one, other in zip(expected, found, strict=True))
    medians = statistics.median(library), statistics.median(ours)
    return {
        "what": "verdicts per CPU-second",
        "math-verify": round(medians[0], 1),
        "rlrun": round(medians[1], 1),
        "ratio": round(medians[1] / medians[0], 1),
        "different verdicts": different,
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
