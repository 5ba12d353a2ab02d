"""Whatever happens to a spec, the answer is a valid spec or a SpecError, never another exception."""

import random
import shutil
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.paths import RECIPES
from rlrun.specs.problems.findings import SpecError

HERE = Path(__file__).parent
SEEDS = [
    path.read_text("utf-8")
    for path in (HERE / "base.toml", HERE / "full.toml", *sorted(RECIPES.glob("*.toml")))
]
PIECES = [
    *"\n\t \"'[]{}=.,#_-\\0aé\U0001f600\x7f", '"""', "'''", "[[", "]]", "[rewards]", "[[data]]",
    "[trainer.parallel.fsdp]", "true", "nan", "1e999", "-1", "0x1F", "1979-05-27", "${env:X}", "${var:}",
    "extends = ", "type = ", "path", "package:..", "= 3\n", "rewards.0.weight", "9" * 400, "x" * 300,
    "~nobody-here/", "{ a = 1 }", "${var:x=[1]}", "[vars]", "[profiles.a]", "[profiles.a.vars]",
    "a.b.c", '"\\u0000"',
]  # fmt: skip


def mutated(text: str, seed: int, mutations: int) -> str:
    """`text` with pieces cut out, doubled, moved and put in, by a seed."""
    rng = random.Random(seed)
    for _ in range(mutations):
        start = rng.randrange(len(text) + 1)
        end = min(len(text), start + rng.choice([0, 1, 3, 10, 40]))
        middle = rng.choice(
            ["", text[start:end] * 2, rng.choice(PIECES), rng.choice(PIECES) + text[start:end]]
        )
        text = text[:start] + middle + text[end:]
    return text


def load_anyhow(path: Path, overrides: tuple[str, ...] = ()) -> None:
    try:
        load_checked_spec([path], overrides)
    except SpecError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.message
            assert problem.as_dict()["line"] >= 0
            assert str(problem)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the specs refer to."""
    folder = tmp_path_factory.mktemp("specs")
    shutil.copytree(HERE / "tiny", folder / "tiny")
    for name in ("rows.jsonl", "base.toml"):
        shutil.copy(HERE / name, folder)
    return folder


@settings(max_examples=250, deadline=None)
@given(text=st.sampled_from(SEEDS), seed=st.integers(0, 2**32), mutations=st.integers(1, 6))
def test_mutated_specs(folder: Path, text: str, seed: int, mutations: int) -> None:
    path = folder / "mutated.toml"
    path.write_text(mutated(text, seed, mutations), encoding="utf-8", newline="")
    load_anyhow(path)


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=40))
@example("rewards=[1]")
@example("rewards.0=1")
@example("rewards.0.type.x=1")
@example("trainer.parallel=[[1]]")
@example("model.path=\0")
@example("eval.datasets=[{name='a'}, 3]")
@example("data=[]")
@example("algorithm=3")
@example("algorithm.kl={in_loss={type='k9'}}")
@example("model.path='~nobody-here/x'")
@example(f"data.path='{'x' * 5000}'")
@example("name=1979-05-27")
@example("a='''\n'''")
@example("vars=3")
@example("vars.x=1")
@example("rollout.stop=['${var:x}', '${var:x=}']")
@example("profiles.a.seed=1")
def test_any_override(override: str) -> None:
    load_anyhow(HERE / "base.toml", (override,))
