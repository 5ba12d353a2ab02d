"""Every mistake in a dump is reported with the file, the array and the cure."""

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.runner.conform.comparison import conform
from rlrun.runner.conform.dump import read_dump
from rlrun.runner.contracts.errors import DumpError
from tests.runner.conform.other_trainer import Trainer, batch_of

GRPO = {"algorithm": {"type": "grpo"}}
Change = Callable[[dict[str, Any]], object]


def write(path: Path, change: Change = lambda _: None, settings: Any = GRPO) -> Path:
    arrays = batch_of(Trainer()) | {"settings": json.dumps(settings)}
    change(arrays)
    np.savez_compressed(path, **arrays)
    return path


def not_finite(name: str) -> Change:
    def change(arrays: dict[str, Any]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][np.nonzero(arrays["mask"])[0][4], 1] = np.nan

    return change


def test_one_number_per_sample_is_repeated_on_its_tokens(tmp_path: Path) -> None:
    dump = read_dump(write(tmp_path / "dump.npz"))
    assert dump.results["advantages"].shape == dump.batch.tokens.shape
    assert (dump.results["advantages"] == dump.results["advantages"][:, :1]).all()


def test_what_is_not_trained_on_may_be_anything(tmp_path: Path) -> None:
    def change(arrays: dict[str, Any]) -> None:
        arrays["old_log_probs"] = np.where(arrays["mask"] > 0, arrays["old_log_probs"], np.nan)
        arrays["kl"] = np.where(arrays["mask"] > 0, arrays["kl"], np.inf)

    report = conform(read_dump(write(tmp_path / "dump.npz", change)))
    assert {finding.term: finding.status for finding in report.findings}["ratios"] == "equal"


MISTAKES: dict[str, tuple[Change, str]] = {
    "no settings": (lambda arrays: arrays.pop("settings"), "has no settings: add settings=json.dumps"),
    "settings that are numbers": (lambda arrays: arrays.update(settings=1), "settings is not one string"),
    "settings that are no JSON": (lambda arrays: arrays.update(settings="{"), "settings: not JSON"),
    "settings that are a list": (lambda arrays: arrays.update(settings="[]"), "not a JSON object"),
    "a missing array": (
        lambda arrays: arrays.pop("old_log_probs") is arrays.pop("rewards"),
        "has no array rewards",
    ),
    "a name that is not known": (lambda arrays: arrays.update(advantage=1), 'did you mean "advantages"?'),
    "nothing to compare": (
        lambda arrays: [
            arrays.pop(name) for name in ("advantages", "ratios", "kl", "token_losses", "loss", "gradients")
        ],
        "nothing to compare",
    ),
    "another length": (
        lambda arrays: arrays.update(old_log_probs=arrays["old_log_probs"][:, :-1]),
        "old_log_probs has the shape (8, 9); it takes [B, R], with R = 10 as in tokens",
    ),
    "another number of samples": (
        lambda arrays: arrays.update(rewards=arrays["rewards"][:-1]),
        "rewards has the shape (7,); it takes [B], with B = 8",
    ),
    "a loss per sample": (
        lambda arrays: arrays.update(loss=np.zeros(8)),
        "loss has the shape (8,); it takes one number",
    ),
    "tokens that are not whole": (
        lambda arrays: arrays.update(tokens=arrays["tokens"] + 0.5),
        "tokens holds float64; it takes whole numbers",
    ),
    "texts": (
        lambda arrays: arrays.update(groups=np.array(["a"] * 8)),
        "groups holds <U1; it takes whole numbers",
    ),
    "objects": (
        lambda arrays: arrays.update(rewards=np.array([{}] * 8)),
        "rewards holds object, not numbers",
    ),
    "a weight in the mask": (
        lambda arrays: arrays.update(mask=arrays["mask"] / 2),
        "mask has values other than 0 and 1",
    ),
    "an empty mask": (lambda arrays: arrays.update(mask=arrays["mask"] * 0), "the batch trains nothing"),
    "an empty batch": (
        lambda arrays: arrays.update(tokens=np.zeros((0, 3), int)),
        "tokens has the shape (0, 3); it takes [B, R]",
    ),
    "a log-prob that is not finite": (
        not_finite("log_probs"),
        "log_probs has values that are not finite, first on sample 1, token 1",
    ),
    "a KL that is not finite": (
        not_finite("kl"),
        "kl has values that are not finite, first on sample 1",
    ),
    "a reward that is missing": (
        lambda arrays: arrays.update(rewards=np.where(np.arange(8) == 3, np.nan, 0)),
        "the reward of sample 3 is not finite",
    ),
    "logits of a smaller vocabulary": (
        lambda arrays: arrays.update(logits=arrays["logits"][..., :4]),
        "tokens has ids that logits, with 4 columns, does not have",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake: str, tmp_path: Path) -> None:
    change, message = MISTAKES[mistake]
    path = write(tmp_path / "dump.npz", change)
    with pytest.raises(DumpError) as error:
        read_dump(path)
    assert str(error.value).startswith(str(path))
    assert message in str(error.value)


SETTINGS: dict[str, tuple[Any, str]] = {
    "an unknown table": ({"trainr": {}}, "trainr: unknown key"),
    "an unknown key": ({"trainer": {"reductions": "x"}}, "trainer.reductions: unknown key"),
    "an unknown reduction": ({"trainer": {"reduction": "mean"}}, "trainer.reduction: "),
    "a temperature of 0": ({"rollout": {"temperature": 0}}, "rollout.temperature: "),
    "an unknown algorithm": ({"algorithm": {"type": "gprpo"}}, "did you mean 'grpo'?"),
    "an unknown parameter": ({"algorithm": {"type": "grpo", "clip_hi": 1}}, "clip_hi: unknown key"),
    "an algorithm with a critic": ({"algorithm": {"type": "ppo"}}, "needs a critic"),
    "an algorithm with greedy responses": ({"algorithm": {"type": "remax"}}, "greedy responses"),
    "an algorithm of pairs": ({"algorithm": {"type": "online_dpo"}}, "a state, pairs"),
    "an entropy bonus": ({"algorithm": {"type": "grpo", "entropy_coef": 0.1}}, "needs the array entropies"),
    "a correction": ({"algorithm": {"correction": {}}}, "needs the array sampling_log_probs"),
}


@pytest.mark.parametrize("mistake", SETTINGS)
def test_settings_that_rlrun_cannot_compute_are_named(mistake: str, tmp_path: Path) -> None:
    settings, message = SETTINGS[mistake]
    with pytest.raises(DumpError) as error:
        conform(read_dump(write(tmp_path / "dump.npz", settings=settings)))
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "dump.npz"))


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "dump.npz")
    whole = path.read_bytes()
    for data in (b"", b"PK", whole[:-100], whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(DumpError, match=r"is not a whole \.npz file"):
            read_dump(path)


def test_a_header_that_claims_too_much_takes_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "dump.npz"
    header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
    with zipfile.ZipFile(path, "w") as archive, archive.open("rewards.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[arg-type]
    with pytest.raises(DumpError, match="rewards does not have the size that it states"):
        read_dump(path)
