"""`rlrun conform` prints what differs, and its exit code says whether anything does."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.cli_outcome import Command
from tests.runner.conform.other_trainer import END, Trainer, batch_of, dump
from tests.runner.conform.stored_run import stored

DUMPS = Path(__file__).parents[1] / "runner/conform/dumps"
GRPO = Trainer(
    kl_coef=0.0,
    settings={"algorithm": {"type": "grpo"}, "batch": {"source": "numpy", "end_token_ids": [END]}},
)


def test_a_batch_that_agrees(rlrun: Command) -> None:
    outcome = rlrun("conform", DUMPS / "dapo/step-2.npz")
    assert outcome.code == 0
    assert "TRL 1.16.0, step 2: 8 samples, 76 trained tokens, algorithm grpo" in outcome.out
    assert "differs" not in outcome.out


def test_what_a_batch_cannot_tell_is_named(rlrun: Command) -> None:
    outcome = rlrun("conform", DUMPS / "dapo/step-1.npz")
    assert "this batch is the same with other settings of: old_policy, ratio_level, clip" in outcome.out


def test_a_difference_is_printed_with_its_place_and_its_setting(rlrun: Command, tmp_path: Path) -> None:
    path = dump(tmp_path / "dump.npz", replace(GRPO, std_divisor=0, reduction="per_token"))
    outcome = rlrun("conform", path)
    assert outcome.code == 2
    assert "first difference: advantages, most on sample 1 (group 0), token 0" in outcome.out
    assert 'explained by: algorithm.std_divisor = "n"  (std_divisor)' in outcome.out
    assert "with that setting, the next difference: loss" in outcome.out
    assert 'explained by: trainer.reduction = "per_token"  (reduction)' in outcome.out


def test_json_has_every_term(rlrun: Command, tmp_path: Path) -> None:
    path = dump(tmp_path / "dump.npz", replace(GRPO, clip_high=0.28))
    outcome = rlrun("conform", path, "--json")
    report = json.loads(outcome.out)
    assert (outcome.code, report["first_difference"], report["source"]) == (2, "token_losses", "numpy")
    by_name = {term["term"]: term for term in report["terms"]}
    assert by_name["advantages"]["status"] == "equal"
    assert by_name["token_losses"]["explanations"][0] == {
        "names": ["clip"],
        "settings": ["algorithm.clip_high = 0.28"],
    }
    assert by_name["token_losses"]["difference"]["tokens"] > 0


def test_json_has_no_infinity(rlrun: Command, tmp_path: Path) -> None:
    old = batch_of(GRPO)["old_log_probs"]
    old[:, 1] = -1e4
    path = dump(tmp_path / "dump.npz", GRPO, only=("token_losses",), old_log_probs=old)
    report = json.loads(rlrun("conform", path, "--json").out, parse_constant=pytest.fail)
    losses = next(term for term in report["terms"] if term["term"] == "token_losses")
    assert losses["status"] == "differs"
    assert losses["largest_difference"] is losses["difference"]["ours"] is None
    assert losses["difference"]["token"] == 1


@pytest.mark.parametrize("name", ["missing.npz", "text.npz"])
def test_a_file_that_cannot_be_read(name: str, rlrun: Command, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("no arrays")
    outcome = rlrun("conform", tmp_path / name)
    assert outcome.code == 2
    assert str(tmp_path / name) in outcome.err
    assert outcome.err.count("\n") == 1


def test_stored_samples_of_a_run_are_compared(
    tmp_path: Path, rlrun: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stored(tmp_path, GRPO)
    outcome = rlrun("conform", "first@3")
    assert outcome.code == 0, outcome.err
    assert "rlrun, first, step 3: 8 samples" in outcome.out
    assert "advantages     equal" in outcome.out
    for target, message in (
        ("first@4", "has no samples of step 4"),
        ("first@latest", "write the number of a step"),
    ):
        outcome = rlrun("conform", target)
        assert (outcome.code, message in outcome.err) == (2, True)
