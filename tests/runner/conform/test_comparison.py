"""`rlrun conform` agrees with real batches of TRL, and names each difference that is planted in one."""

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlrun.runner.conform.comparison import Report, conform
from rlrun.runner.conform.dump import RESULTS, read_dump
from rlrun.runner.conform.neighbours import NEIGHBOURS, Neighbour
from rlrun.runner.conform.terms import Computed, NotComputed, first_case
from tests.runner.conform.other_trainer import END, Trainer, batch_of, dump

DUMPS = Path(__file__).parent / "dumps"
KL = {"in_loss": {"type": "k3", "coef": 0.1}}
SETTINGS = {"algorithm": {"type": "grpo", "kl": KL}, "batch": {"end_token_ids": [END]}}
GRPO = Trainer(settings=SETTINGS)


def compared(path: Path) -> Report:
    return conform(read_dump(path))


def first(report: Report) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Returns the first term that differs, and the names and settings of its best explanation."""
    assert report.differences, report
    finding = report.differences[0]
    assert finding.explanations, finding
    return finding.term, finding.explanations[0].names, finding.explanations[0].settings


def said(**tables: dict[str, object]) -> dict[str, object]:
    return {**SETTINGS, **tables}


@pytest.mark.parametrize("name", ["grpo", "grpo-kl", "dr_grpo", "dapo", "gspo"])
@pytest.mark.parametrize("step", [1, 2])
def test_batches_of_trl_agree(name: str, step: int) -> None:
    report = compared(DUMPS / name / f"step-{step}.npz")
    equal = {finding.term: finding.largest for finding in report.findings if finding.status == "equal"}
    assert {"mask", "advantages", "loss", "gradients"} <= equal.keys()
    assert ("old_log_probs" in equal) == (step == 1)
    assert max(equal.values()) < 1e-5
    assert not report.differences
    assert ("clip" in report.untested) == (step == 1), "only the ratios of the second step differ from 1"


def test_trl_reduces_bnpo_within_each_micro_batch() -> None:
    for step in (1, 2):
        term, names, _ = first(compared(DUMPS / "bnpo" / f"step-{step}.npz"))
        assert (term, names) == ("loss", ("micro_batches",))


def test_a_trainer_that_does_what_it_says_agrees(tmp_path: Path) -> None:
    report = compared(dump(tmp_path / "dump.npz", GRPO))
    statuses = {finding.term: finding.status for finding in report.findings}
    assert statuses == {**dict.fromkeys(statuses, "equal"), "old_log_probs": "not compared"}
    assert report.untested == ["dual_clip", "max_response_tokens"][:1]


PLANTED = {
    "normalisation": (replace(GRPO, normalize_std=False), "advantages", "normalize_std", "= false"),
    "the divisor of the std": (replace(GRPO, std_divisor=0), "advantages", "std_divisor", '= "n"'),
    "the epsilon of the std": (replace(GRPO, std_epsilon=1e-4), "advantages", "std_epsilon", "= 0.0001"),
    "a bound of the ratio": (replace(GRPO, clip_high=0.28), "token_losses", "clip", "clip_high = 0.28"),
    "the KL estimator k1": (replace(GRPO, kl="k1"), "kl", "kl_estimator", 'type = "k1"'),
    "the KL estimator k2": (replace(GRPO, kl="k2"), "kl", "kl_estimator", 'type = "k2"'),
    "the KL's weight": (replace(GRPO, kl_coef=0.04), "token_losses", "kl_coef", "coef = 0.04"),
    "a mean over tokens": (replace(GRPO, reduction="per_token"), "loss", "reduction", '= "per_token"'),
    "a constant": (replace(GRPO, reduction="dr_grpo"), "loss", "reduction", '= "dr_grpo"'),
    "micro-batches": (
        replace(
            GRPO, reduction="per_token", micro_batches=2, settings=said(trainer={"reduction": "per_token"})
        ),
        "loss",
        "micro_batches",
        "within each micro-batch",
    ),
    "a mask that is late": (replace(GRPO, mask_late=True), "mask", "mask_shift", "one token late"),
    "a late mask in the loss": (
        replace(GRPO, mask_late=True, mask_only_in_loss=True),
        "loss",
        "mask_shift",
        "in the loss, the mask is one token late",
    ),
    "no end token": (replace(GRPO, end_token_in_mask=False), "mask", "end_token", "not in the mask"),
    "no end token in the loss": (
        replace(GRPO, end_token_in_mask=False, mask_only_in_loss=True),
        "loss",
        "end_token",
        "in the loss, the end token is not",
    ),
    "the side of the padding": (replace(GRPO, padded_left=True), "mask", "mask_padding", "other side"),
    "a temperature": (
        replace(GRPO, temperature=1.0, settings=said(rollout={"temperature": 0.6})),
        "log_probs",
        "temperature",
        "not applied to the log-probs",
    ),
    "a temperature twice": (
        replace(GRPO, temperature=0.36, settings=said(rollout={"temperature": 0.6})),
        "log_probs",
        "temperature",
        "applied twice",
    ),
    "stale old log-probs": (
        replace(GRPO, settings=said(batch={"on_policy": True})),
        "old_log_probs",
        "stale",
        "on_policy = false",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_difference_is_named(planted: str, tmp_path: Path) -> None:
    trainer, term, name, setting = PLANTED[planted]
    report = compared(dump(tmp_path / "dump.npz", trainer))
    assert first(report)[:2] == (term, (name,))
    assert setting in first(report)[2][0]
    # with that setting, everything that follows is equal
    assert [finding.term for finding in report.differences] == [term]


LATER = [name for name, row in PLANTED.items() if row[1] in ("advantages", "kl", "token_losses", "loss")]


@pytest.mark.parametrize("planted", LATER)
def test_the_loss_and_its_gradients_are_enough(planted: str, tmp_path: Path) -> None:
    trainer, _, name, setting = PLANTED[planted]
    report = compared(dump(tmp_path / "dump.npz", trainer, only=("loss", "gradients")))
    term, names, settings = first(report)
    assert names == (name,)
    assert term == ("gradients" if name == "std_epsilon" else "loss")
    assert setting in settings[0]


def test_groups_in_another_order_are_named(tmp_path: Path) -> None:
    report = compared(dump(tmp_path / "dump.npz", GRPO, groups=[0, 1] * 4))
    settings = ("groups: the samples of a prompt follow each other",)
    assert first(report) == ("advantages", ("groups",), settings)


def test_two_differences_are_named_one_after_the_other(tmp_path: Path) -> None:
    trainer = replace(GRPO, std_divisor=0, reduction="per_token")
    report = compared(dump(tmp_path / "dump.npz", trainer))
    named = [(finding.term, finding.explanations[0].names) for finding in report.differences]
    assert named == [("advantages", ("std_divisor",)), ("loss", ("reduction",))]


def test_two_settings_together_explain_one_term(tmp_path: Path) -> None:
    trainer = replace(GRPO, std_divisor=0, reduction="per_token")
    report = compared(dump(tmp_path / "dump.npz", trainer, only=("ratios", "kl", "loss", "gradients")))
    assert first(report)[:2] == ("loss", ("std_divisor", "reduction"))


def test_a_difference_without_an_explanation_is_located(tmp_path: Path) -> None:
    advantages = batch_of(GRPO)["advantages"].copy()
    advantages[5] += 0.25
    results = ("advantages", "ratios", "kl")
    report = compared(dump(tmp_path / "dump.npz", GRPO, only=results, advantages=advantages))
    [finding] = report.differences
    assert (finding.term, finding.explanations) == ("advantages", [])
    difference = finding.difference
    assert difference is not None
    assert (difference.sample, difference.samples, difference.factor) == (5, 1, None)
    assert difference.largest == pytest.approx(0.25)
    losses = {each.term: each.status for each in report.findings}
    assert losses["ratios"] == losses["kl"] == "equal"


def test_a_factor_of_all_gradients_is_named(tmp_path: Path) -> None:
    report = compared(
        dump(tmp_path / "dump.npz", replace(GRPO, loss_scale=4), only=("token_losses", "gradients"))
    )
    [finding] = report.differences
    assert finding.difference is not None
    assert finding.explanations == []
    assert finding.difference.factor == pytest.approx(4)


def test_the_tolerance_is_relative_to_the_largest_value(tmp_path: Path) -> None:
    path = dump(tmp_path / "dump.npz", replace(GRPO, std_epsilon=1e-4), only=("advantages",))
    assert not conform(read_dump(path), tolerance=1e-3).differences
    assert conform(read_dump(path), tolerance=1e-5).differences


IN_RESULTS = [neighbour for neighbour in NEIGHBOURS if neighbour.acts_on in RESULTS]


@pytest.mark.parametrize("neighbour", IN_RESULTS, ids=lambda each: f"{each.name}-{each.acts_on}")
def test_every_variant_is_found_where_rlrun_itself_computes_it(neighbour: Neighbour, tmp_path: Path) -> None:
    settings = said(trainer={"reduction": "dr_grpo"}, rollout={"max_response_tokens": 12})
    trainer = replace(GRPO, micro_batches=3, settings=settings)
    random = np.random.default_rng(1)
    sampling = batch_of(trainer)["old_log_probs"] + random.normal(0, 0.5, (8, 10)).astype(np.float32)
    base = dump(tmp_path / "base.npz", trainer, sampling_log_probs=sampling)
    variants = list(neighbour.variants(first_case(read_dump(base))))
    num_found = 0
    for variant in variants:
        results = {}
        for term in list(RESULTS)[list(RESULTS).index(neighbour.acts_on) :]:
            with suppress(NotComputed):
                results[term] = Computed(variant.case).term(term)
        path = dump(tmp_path / "dump.npz", trainer, sampling_log_probs=sampling, **results)
        report = compared(path)
        if report.differences:  # some are equal on this batch, as k3 and low_var_kl
            explanations = report.differences[0].explanations
            assert variant.setting in [setting for each in explanations for setting in each.settings]
            num_found += 1
    assert num_found or neighbour.name == "dual_clip"


def test_the_page_has_a_row_for_every_neighbour() -> None:
    page = (Path(__file__).parents[3] / "docs/conform.md").read_text("utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ", page.partition("## What is tried")[2], re.MULTILINE)
    assert rows == list(dict.fromkeys(sorted((each.name for each in NEIGHBOURS), key=rows.index)))
    assert len(rows) == len({each.name for each in NEIGHBOURS})
