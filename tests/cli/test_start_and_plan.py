"""What a job says when it starts, and what `rlrun plan` says of the same spec."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.job.launch import resolve_for_launch, start_notes
from rlrun.specs.derived.shared_prefixes import NOT_SHARED
from rlrun.specs.paths import RECIPES
from rlrun.specs.reading import loading
from tests.cli.cli_outcome import Command

QUICKSTART, SFT = ((RECIPES / f"{name}.toml").read_text() for name in ("quickstart", "quickstart-sft"))
LONG = ["rollout.max_prompt_tokens=400", "rollout.max_response_tokens=64"]
SPECS = {
    "the quickstart": (QUICKSTART, []),
    "long prompts": (QUICKSTART, LONG),
    "responses that are much longer than prompts": (QUICKSTART, ["rollout.max_response_tokens=464"]),
    "the spec shares prefixes itself": (QUICKSTART, ["trainer.share_prefixes=true"]),
    "the spec shares no prefixes": (QUICKSTART, ["trainer.share_prefixes=false"]),
    "one sample per prompt": (
        QUICKSTART,
        ["rollout.samples_per_prompt=1", "algorithm.type=reinforce_plus_plus"],
    ),
    "longer evaluations": (QUICKSTART, ["eval.max_response_tokens=128"]),
    "a processor without bfloat16": (re.sub(r"\ndtype = .*", "", QUICKSTART), []),
    "emulated float8": (
        QUICKSTART,
        ["trainer.precision=float8", "trainer.dtype=bfloat16", "engine.dtype=bfloat16"],
    ),
    "several turns": (QUICKSTART, ["rollout.max_turn_tokens=32"]),
    "demonstrations": (SFT, []),
}


@pytest.fixture(params=SPECS)
def said(
    request: pytest.FixtureRequest, rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[list[str], str]:
    """The lines of a job's start, and what `rlrun plan` prints of the spec."""
    text, settings = SPECS[request.param]
    spec = tmp_path / "job.toml"
    spec.write_text(text.replace('"quickstart/', f'"{RECIPES}/quickstart/'))
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(loading, "multiplies_bfloat16", lambda: False)
    plan = rlrun("plan", spec, *(f"--set={setting}" for setting in settings))
    assert plan.code == 0, plan.err
    loaded = load_checked_spec([spec], settings, ())
    model = ModelFiles(Path(loaded.spec.model.path), None)
    resolved, sharing = resolve_for_launch(loaded, model)
    return list(start_notes(resolved, model, sharing)), plan.out


def test_the_plan_has_every_line_of_the_start(said: tuple[list[str], str]) -> None:
    notes, plan = said
    text = " ".join(plan.split())  # titles of tables are wrapped
    for note in notes:
        if note.startswith(("a sample may have", "a demonstration may have")):
            assert set(_limits(note)) <= set(re.findall(r"[0-9]+", text)), note
        else:
            assert note in text


def test_the_start_does_not_promise_fewer_tokens_than_the_plan_counts(said: tuple[list[str], str]) -> None:
    notes, plan = said
    promised = [note for note in notes if "fewer tokens" in note]
    if "│ " + NOT_SHARED in plan:
        assert all(NOT_SHARED in note for note in promised)


def _limits(note: str) -> Iterator[str]:
    """Yields the numbers of a sentence on samples, which the plan has in a table: the largest of each."""
    sample, prompt, response = re.findall(r"(\d+) tokens: a prompt of (\d+) .*? a response of (\d+)", note)[0]
    evaluated = re.findall(r"in evaluations (\d+) tokens", note)
    yield from (evaluated[0] if evaluated else sample, prompt, response)
    yield from re.findall(r"it may take (\d+) s", note)


def test_the_plan_shows_the_groups_of_servers(
    rlrun: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = tmp_path / "job.toml"
    spec.write_text(QUICKSTART.replace('"quickstart/', f'"{RECIPES}/quickstart/'))
    monkeypatch.setenv("COLUMNS", "400")
    groups = '[{role = "prefill", sglang = {page_size = 16}}, {role = "decode", count = 3}]'
    settings = ("deterministic=false", "engine.type=sglang", f"engine.groups={groups}")
    plan = rlrun("plan", spec, *(f"--set={setting}" for setting in settings))
    assert plan.code == 0, plan.err
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in plan.out.splitlines()]
    assert ["0", "0", "prefill", "1", "page_size = 16"] in rows
    assert ["1", "1–3", "decode", "1", "those of [engine]"] in rows
    assert "group 1, decode" in plan.out
