"""Answers that mean harm, scored as a job scores them: each costs at most its own deadline and score."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.types import Prompt, Row, Sample, Status
from rlrun.runner.scoring.scorer import Scorer
from rlrun.specs.sections.scoring import RewardSpec, ScoringSpec
from tests.child_processes import command_lines

DEADLINE = 1.5
MEMORY = 3.0

BOMBS = {
    "power tower": "9**9**9",
    "power tower in LaTeX": "9^{9^{9}}",
    "power tower of five": "9^9^9^9^9",
    "huge exponent": "10^{10^{10}}",
    "huge exponent in a fraction": r"\frac{10^{10^{10}}}{3}",
    "exponent notation": "1e999999999",
    "factorial": "(10000000)!",
    "factorials": "200!!!!",
    "exponentials": "e^{e^{e^{e^{e}}}}",
    "nested fractions": r"\frac{1}{1+" * 300 + "1" + "}" * 300,
    "nested roots": r"\sqrt{2+" * 60 + "2" + "}" * 60,
    "nested sines": r"\sin(" * 200 + "x" + ")" * 200,
    "nested braces": "{" * 20_000 + "1" + "}" * 20_000,
    "nested parentheses": "(" * 3_000 + "x" + ")" * 3_000,
    "open braces": "{" * 1_000_000,
    "power of a sum": "(x+1)^{5000}",
    "power of a long sum": "(x+y+z+w)^{60}",
    "integral": r"\int_0^1 e^{-x^{2}\sin(x^{7})}dx",
    "long sum": r"\sum_{k=1}^{10^{9}} \frac{1}{k^{2}+1}",
    "limit": r"\lim_{x\to 0}\frac{\sin(x^{99})^{99}}{x^{9801}}",
    "digits": "7" * 200_000,
    "10 MB of digits": "7" * 10_000_000,
    "10 MB of words": "word " * 2_000_000,
    "10 MB of dollars": "$" * 10_000_000,
    "10 MB of backslashes": "\\" * 10_000_000,
    "set of 3000": r"\{" + ",".join(map(str, range(3000))) + r"\}",
    "large matrix": r"\begin{pmatrix}"
    + r"\\".join("&".join("7" for _ in range(40)) for _ in range(40))
    + r"\end{pmatrix}",
    "text in text": r"\text{" * 50_000,
    "frac without end": r"\frac{" * 5_000,
    "signs": "-" * 100_000 + "1",
    "commas": "1," * 100_000,
    "null and surrogates": "\x00\ud800\udfff",
    "code injection": "__import__('os').system('sleep 99')",
    "attribute walk": "().__class__.__bases__[0].__subclasses__()",
    "macro": r"\def\a{\a\a}\a",
    "expanding macro": r"\newcommand{\b}[1]{#1#1}\b{\b{\b{\b{x}}}}",
}
PROGRAMS = {
    "endless loop": "while True: pass",
    "fork bomb": "import os\nwhile True: os.fork()",
    "file write": "open('/etc/evil', 'w').write('x')",
    "memory bomb": "x = [0] * 10**11",
    "output bomb": "while True: print('x' * 10**6)",
    "kill": "import os; os.kill(-1, 9)",
    "server": "import socket; s = socket.socket(); s.bind(('', 1)); s.listen(); s.accept()",
}


def cases() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Reward, response and metadata by name."""
    found = {}
    for name, bomb in BOMBS.items():
        found[f"math: {name}"] = ("math", f"so \\boxed{{{bomb}}}", {})
        found[f"math_verify: {name}"] = ("math_verify", f"so $\\boxed{{{bomb}}}$", {})
    for name in ("10 MB of words", "10 MB of dollars", "null and surrogates"):
        for reward in ("f1", "gpqa", "dapo", "deepscaler"):
            found[f"{reward}: {name}"] = (reward, f"</think>Answer: {BOMBS[name]}", {})
    for name, program in PROGRAMS.items():
        found[f"code: {name}"] = ("code", program, {"tests": [{"input": "", "output": "1"}]})
    return found


def samples_of(rows: Sequence[tuple[str, str, dict[str, Any]]]) -> list[Sample]:
    empty, tokens = np.zeros(1, np.float32), np.zeros(1, np.int32)
    return [
        Sample(
            f"{number}-0",
            Prompt(Row(str(number), "q", "42", {**metadata, "rm_type": reward}), number, tokens),
            *(tokens, empty, empty, (), Status.COMPLETED),
            response,
        )
        for number, (reward, response, metadata) in enumerate(rows)
    ]


@pytest.mark.slow
async def test_every_case_ends_within_its_deadline_and_spares_the_others(tmp_path: Path) -> None:
    harmful = cases()
    assert len(harmful) >= 60
    healthy = ("math", r"\boxed{42}", {})
    rows = [row for case in harmful.values() for row in (healthy, case)] + [healthy]
    scoring = ScoringSpec(workers=2, timeout=DEADLINE, memory=MEMORY, on_error="drop")
    spec = RewardSpec.model_validate({"type": "math", "type_key": "rm_type"})
    scorer = Scorer([spec], scoring, tmp_path, usual_key="score")
    await scorer.start()
    try:
        samples = samples_of(rows)
        begin = time.monotonic()
        await scorer.score(samples)
        seconds = time.monotonic() - begin
    finally:
        await scorer.close()
    assert {sample.reward for sample in samples[::2]} == {1}
    for name, sample in zip(harmful, samples[1::2], strict=True):
        assert sample.reward in {0, -1} or sample.failure, f"{name}: {sample.reward}"
    failed = sum(sample.failure is not None for sample in samples)
    assert scorer.errors["math"] >= failed
    print(json.dumps({"cases": len(harmful), "failed": failed, "seconds": round(seconds, 1)}))
    assert not [line for line in command_lines() if "jail" in line]


GARBLED = "import os\ndef f():\n    os.write(4, b'NaN]{' * 1000); print('{\"value\": 1}'); return 1"
STOPPED = {
    "eight slow tests": ("import time\nprint(input()); time.sleep(2)", [{"input": "1", "output": "1"}] * 8),
    "eight slow calls": ("import time\ndef f(): time.sleep(2); return 1", ["assert f() == 1"] * 8),
    "rubbish as a result": (GARBLED, [{"call": "f", "args": [], "returns": 1}]),
    "rubbish as an answer": (GARBLED, ["assert f() == 1"]),
    "no program": ("\ud800\x00", ["assert f() == 1"]),
}


async def test_a_program_never_ends_the_job(tmp_path: Path) -> None:
    scoring = ScoringSpec(timeout=8, on_error="stop")
    scorer = Scorer([RewardSpec.model_validate({"type": "code", "timeout": 2.5})], scoring, tmp_path)
    rows = [("code", program, {"tests": tests}) for program, tests in STOPPED.values()]
    healthy = ("code", "def f(): return 1", {"tests": ["assert f() == 1"]})
    await scorer.start()
    try:
        samples = samples_of([*rows, healthy])
        await scorer.score(samples)
    finally:
        await scorer.close()
    assert [sample.reward for sample in samples] == [*[0.0] * len(rows), 1.0]
    assert not scorer.errors
