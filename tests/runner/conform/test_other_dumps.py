"""The hooks for verl and OpenRLHF, on objects with the fields of theirs, and rlrun's own stored samples."""

import json
import runpy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import zstandard

from rlrun.runner.conform.comparison import Report, conform
from rlrun.runner.conform.dump import read_dump
from rlrun.runner.conform.stored_samples import dump_of_step
from rlrun.runner.contracts.errors import DumpError
from rlrun.runner.records.packed_lines import read_records
from rlrun.runner.records.saved_rollouts import rollout_path
from tests.runner.conform.other_trainer import END, GROUPS, PAD, SAMPLES, Trainer, batch_of
from tests.runner.conform.stored_run import stored

EXAMPLES = Path(__file__).parents[3] / "examples" / "conform"
NO_KL = Trainer(kl_coef=0.0)


def tensors(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(np.asarray(value)) for name, value in batch_of(trainer).items()}


def statuses(report: Report) -> dict[str, str]:
    found = {finding.term: finding.status for finding in report.findings}
    return {term: status for term, status in found.items() if status != "not compared"}


def verl(path: Path, trainer: Trainer, **algorithm: Any) -> Report:
    """Writes a batch as verl has it after `compute_advantage`, and compares it."""
    batch = tensors(trainer)
    mask = batch["mask"].float()
    scores = torch.zeros_like(mask)
    scores[:, 0] = batch["rewards"].float()
    data = SimpleNamespace(
        batch={
            "responses": batch["tokens"],
            "response_mask": mask,
            "old_log_probs": batch["log_probs"],
            "token_level_rewards": scores,
            "advantages": batch["advantages"].float()[:, None] * mask,
        },
        non_tensor_batch={"uid": np.array([f"uid-{9 - int(one)}" for one in batch["groups"]], object)},
    )
    config = SimpleNamespace(
        algorithm=SimpleNamespace(**{"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True, **algorithm}),
        actor_rollout_ref=SimpleNamespace(rollout=SimpleNamespace(temperature=1.0)),
    )
    runpy.run_path(str(EXAMPLES / "verl_dump.py"))["dump_batch"](data, path, config, [END])
    dump = read_dump(path)
    assert dump.settings.batch.source == "verl, step-3"
    return conform(dump)


def openrlhf(path: Path, trainer: Trainer, estimator: str = "group_norm") -> Report:
    """Writes a batch as OpenRLHF has it after `compute_advantages_and_returns`, in two parts of other
    lengths, and compares it.
    """
    batch = tensors(trainer)
    mask = batch["mask"].bool()
    advantages = batch["advantages"].float()[:, None] * mask
    half = SAMPLES // 2
    experiences = []
    for rows in (slice(0, half), slice(half, SAMPLES)):
        length = int((batch["tokens"][rows] != PAD).sum(1).max())
        prompt = torch.full((half, 3), 7)
        experiences.append(
            SimpleNamespace(
                sequences=torch.cat([prompt, batch["tokens"][rows, :length]], dim=1),
                action_mask=mask[rows, :length],
                action_log_probs=batch["log_probs"][rows, :length],
                base_action_log_probs=None,
                rollout_log_probs=batch["log_probs"][rows, :length],
                advantages=advantages[rows, :length],
                rewards=batch["rewards"][rows].float(),
            )
        )
    hook = runpy.run_path(str(EXAMPLES / "openrlhf_dump.py"))["dump_experiences"]
    hook(experiences, path, SAMPLES // GROUPS, estimator, [END])
    return conform(read_dump(path))


@pytest.mark.parametrize(("write", "epsilon"), [(verl, 1e-6), (openrlhf, 1e-9)])
def test_masks_and_advantages_agree(tmp_path: Path, write: Any, epsilon: float) -> None:
    report = write(tmp_path / "dumps" / "step-3.npz", replace(NO_KL, std_epsilon=epsilon))
    assert statuses(report) == {"mask": "equal", "advantages": "equal"}


@pytest.mark.parametrize(("write", "epsilon"), [(verl, 1e-6), (openrlhf, 1e-9)])
def test_differences_are_named(tmp_path: Path, write: Any, epsilon: float) -> None:
    trainer = replace(NO_KL, std_epsilon=epsilon, std_divisor=0, end_token_in_mask=False)
    report = write(tmp_path / "dumps" / "step-3.npz", trainer)
    named = [finding.explanations[0].names for finding in report.differences]
    assert named == [("end_token",), ("std_divisor",)]


def test_the_setting_of_verl_is_read(tmp_path: Path) -> None:
    trainer = replace(NO_KL, normalize_std=False)
    report = verl(tmp_path / "step-3.npz", trainer, norm_adv_by_std_in_grpo=False)
    assert statuses(report)["advantages"] == "equal"


def test_estimators_without_a_counterpart_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="adv_estimator 'gae' is not one of grpo, rloo"):
        verl(tmp_path / "step-3.npz", NO_KL, adv_estimator="gae")
    with pytest.raises(ValueError, match="estimator 'gae' is not one of group_norm"):
        openrlhf(tmp_path / "step-3.npz", NO_KL, "gae")


def test_a_difference_of_stored_samples_is_named(tmp_path: Path) -> None:
    report = conform(dump_of_step(stored(tmp_path, replace(NO_KL, normalize_std=False)), 3))
    [finding] = report.differences
    assert finding.explanations[0].names == ("normalize_std",)


def test_a_run_that_stores_a_part_of_its_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"run it with debug\.save_rollouts = true"):
        dump_of_step(stored(tmp_path, NO_KL, save_rollouts=False), 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"advantages": "AAAA"}, "cannot be read|fields of different lengths"),
        ({"advantages": 5}, "cannot be read"),
        ({"response_tokens": ""}, "sample 0-0 has fields of different lengths"),
        ({"index": None}, "sample 0-0 has no index"),
        ({"index": "x"}, "does not hold samples of rlrun"),
        ({"index": 10**30}, "does not hold samples of rlrun"),
        ({"reward": [1, 2]}, "does not hold samples of rlrun"),
        ({"reward": float("nan")}, "the reward of sample 0-0 is not finite"),
        (None, "has no samples"),
    ],
)
def test_damaged_samples_are_named(tmp_path: Path, change: dict[str, Any] | None, message: str) -> None:
    run = stored(tmp_path, NO_KL)
    path = rollout_path(run.rollouts, 3)
    records = [] if change is None else [record | change for record in read_records(path)]
    path.write_bytes(zstandard.compress("".join(f"{json.dumps(each)}\n" for each in records).encode()))
    with pytest.raises(DumpError, match=message):
        dump_of_step(run, 3)


@pytest.mark.parametrize("spec", [{"debug": {"save_rollouts": True}}, {"debug": []}, {}])
def test_a_lock_without_the_settings_is_named(tmp_path: Path, spec: dict[str, Any]) -> None:
    run = stored(tmp_path, NO_KL)
    run.lock.write_text(json.dumps({"spec": spec, "model": {"sha256": "0"}}))
    with pytest.raises(DumpError, match=r"spec\.lock\.json is not the lock of a launch"):
        dump_of_step(run, 3)
