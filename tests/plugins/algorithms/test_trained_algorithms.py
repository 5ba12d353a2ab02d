"""Every installed algorithm trains, with nothing set but its name, in a job in this process.

Algorithms that generate train the quickstart's model asynchronously, on stale samples, with two optimizer
steps per step: ratios differ from 1, so that the algorithms' own terms act. The others train a random model
on demonstrations, pairs or labels, each from its spec in benchmarks/algorithms.py. A new algorithm is tested
without being named here, unless it needs rows of its own.
"""

import json
import math
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.algorithms import CASES, Case, prepare, spec
from benchmarks.quickstart_jobs import RECIPE
from rlrun.plugins.algorithms.group_compared import ClippedGroup
from rlrun.plugins.algorithms.grpo import GRPO
from rlrun.plugins.registry import build, load, names
from tests.local_job import Lines, run_local

GENERATES = {name: build("algorithms", name, {}).needs.rollout for name in names("algorithms")}
STALE = (
    "rollout.mode=async",
    "rollout.max_staleness=2",
    "rollout.batch_size=8",
    "cluster.placement=disaggregated",
    "cluster.threads=1",
    "trainer.optimizer_steps=2",
    "trainer.steps=3",
    "trainer.lr=1e-3",
    "checkpoint.export_hf=false",
)
NEVER_CLIPS = "train/approx_kl"
ACTS = {
    "clip_cov": "train/cov_frac",
    "kl_cov": "train/cov_frac",
    "sapo": "train/sapo_gate",
    "topr": "train/topr_weight",
    "vespo": "train/vespo_weight",
    "gkd": "train/divergence",
    "gpg": NEVER_CLIPS,
    "pass_at_k": NEVER_CLIPS,
    "a_star_po": "train/a_star_po_loss",
    "online_dpo": "train/dpo_loss",
}
"""The metric in which an algorithm's own term shows; `train/clip_frac` for all others."""
ROWS_OF_ITS_OWN = {"a_star_po"}


def cases() -> Iterator[object]:
    """Yields the algorithms that generate. Those with GRPO's loss are slow: only their advantages differ,
    which test_algorithm_formulas.py computes.
    """
    clipped = {GRPO.loss, ClippedGroup.loss}
    for name, generates in GENERATES.items():
        if generates and name not in ROWS_OF_ITS_OWN:
            is_variant = name != "grpo" and load("algorithms", name).loss in clipped
            yield pytest.param(name, marks=pytest.mark.slow if is_variant else ())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with specs, rows, and a teacher: the quickstart's model with changed weights."""
    folder = tmp_path_factory.mktemp("algorithms")
    prepare(folder)
    teacher = folder / "teacher"
    shutil.copytree(RECIPE.with_name("quickstart") / "model", teacher)
    generator = torch.Generator().manual_seed(1)
    weights = load_file(teacher / "model.safetensors")
    changed = {
        name: weight + 0.02 * torch.randn(weight.shape, generator=generator).to(weight.dtype)
        for name, weight in weights.items()
    }
    save_file(changed, teacher / "model.safetensors", {"format": "pt"})
    (folder / "quickstart.toml").write_text(RECIPE.read_text().partition("[eval]")[0])
    return folder


def run(folder: Path, file: str, name: str, changes: Sequence[str]) -> list[dict[str, float]]:
    lines: Lines = run_local(folder / file, folder / "runs" / name, changes)
    assert all(math.isfinite(line["train/loss"]) for line in lines.lines)
    assert max(line["train/grad_norm"] for line in lines.lines) > 0
    return lines.lines


def acts_on_stale_samples(name: str, lines: list[dict[str, float]]) -> None:
    assert max(line["rollout/staleness/max"] for line in lines) >= 1
    metric = ACTS.get(name, "train/clip_frac")
    values = [line[metric] for line in lines]
    assert any(value not in (0, 1) for value in values), values


@pytest.mark.parametrize("name", cases())
def test_its_terms_act_on_stale_samples_with_nothing_set(folder: Path, name: str) -> None:
    needs = build("algorithms", name, {}).needs
    changes = [f"algorithm.type={name}", "rollout.samples_per_prompt=4", *STALE]
    if needs.teacher:
        changes += [f"teacher.path={folder / 'teacher'}", "rewards=[]"]
    acts_on_stale_samples(name, run(folder, "quickstart.toml", name, changes))


def test_single_samples_with_rewards_of_the_reference_train(folder: Path) -> None:
    rows = [{"prompt": f"say {i}", "reference_rewards": [0.0, 0.25 * (i % 4)]} for i in range(64)]
    (folder / "rewarded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "a_star_po.toml").write_text(spec("a_star_po", Case("")))
    changes = [
        "deterministic=false",
        f"data.path={folder / 'rewarded.jsonl'}",
        'data.metadata_columns=["reference_rewards"]',
        "rollout.samples_per_prompt=1",
    ]
    lines = run(folder, "a_star_po.toml", "a_star_po", [*changes, *STALE])
    acts_on_stale_samples("a_star_po", lines)


@pytest.mark.parametrize("name", [name for name, generates in GENERATES.items() if not generates])
def test_demonstrations_pairs_and_labels_are_learnt(folder: Path, name: str) -> None:
    case = CASES[name]
    (folder / f"{name}.toml").write_text(spec(name, case))
    lines = run(folder, f"{name}.toml", name, ["trainer.steps=4"])
    first, last = lines[0], lines[-1]
    assert last["train/loss"] < first["train/loss"]
    assert last[case.metric] != first[case.metric]
