"""The trainer against plain transformers in float32, on every layout.

Log-probs, entropy and gradients agree to 1e-5, and the weights after one step to 2e-5, with packed
micro-batches against a sequence at a time, over the whole vocabulary and over sampling masks. A few layouts
are part of `make test`; all of them of `make parity`.
"""

from pathlib import Path
from typing import get_args

import pytest
import torch
from safetensors.torch import load_file

from rlrun.specs.needs import Statistic
from tests.runner.trainer.layouts import BY_NAME, CASES
from tests.runner.trainer.trainer_cases import (
    MODELS,
    Reference,
    make_masked_sequences,
    make_rank,
    make_spec,
    plan,
    run_ranks,
)
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("parity_worker.py")
BUFFERS = ("correction_bias", "act_fn.beta", "act_fn.eps", "layer_scalar")
"""Ends of the names of tensors that transformers keeps and does not train."""
OUTPUTS = ("log_probs", *get_args(Statistic))
UNCLIPPED = {"max_grad_norm": 1e9, "lr": 2e-3, "logits_chunk": 16}
ALL = [pytest.param(case.name, marks=() if case.fast else pytest.mark.slow, id=case.name) for case in CASES]
TOGETHER = [each for each in ALL if BY_NAME[each.id].parallel]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        name: make_tiny_model(root / name, **({"pad_token_id": None, "scale": 0.1} | MODELS[name]))
        for name in MODELS
    }


@pytest.fixture(scope="module")
def reference(folders):
    """`reference(model)`: what plain transformers and torch give."""
    known = {}

    def of(name):
        if name not in known:
            known[name] = expected(folders[name])
        return known[name]

    return of


def expected(folder):
    spec = make_spec(folder, **UNCLIPPED)
    model = Reference(folder, spec)
    sequences = make_masked_sequences()
    (step,) = plan(sequences, spec)
    with torch.no_grad():
        statistics = [model.statistics(sequence) for sequence in sequences]
    gradients = model.gradients(sequences, step.scale, entropy_coef=0.1)
    weights, norm = model.step()
    return {
        **dict(zip(OUTPUTS, zip(*statistics, strict=True), strict=True)),
        "entropy": sum(
            step.scale[i] * float((entropy * torch.from_numpy(sequences[i].loss_mask)).sum())
            for i, (_, entropy, _) in enumerate(statistics)
        ),
        "gradients": gradients,
        "weights": weights,
        "norm": norm,
    }


class Runs:
    """What every rank of each case gave; those that are wanted on as many ranks share a process group."""

    def __init__(self, root, folders, wanted):
        self.root, self.folders = root, folders
        self.checkpoints = root / "checkpoints"
        self._wanted = wanted | {f"{BY_NAME[name].model}-alone-1" for name in wanted}
        self._found = {}

    def of(self, name):
        if name not in self._found:
            case = BY_NAME[name]
            if case.ranks > 1:
                self.of(f"{case.model}-alone-1")  # its checkpoint is resumed
            self._run([each for each in CASES if each.ranks == case.ranks and each.name in self._wanted])
        return self._found[name]

    def _run(self, cases):
        ranks = cases[0].ranks
        out = self.root / f"ranks-{ranks}"
        out.mkdir()
        arguments = [
            {
                "name": case.name,
                "folder": str(self.folders[case.model]),
                "parallel": case.parallel,
                "trainer": UNCLIPPED | case.trainer,
                "checkpoint": str(self.checkpoints / case.name),
                "resume": str(self.checkpoints / f"{case.model}-alone-1") if case.parallel else None,
            }
            for case in cases
        ]
        run_ranks(WORKER, ranks, arguments, out)
        for case in cases:
            self._found[case.name] = [
                torch.load(out / f"{case.name}-{rank}.pt", weights_only=False) for rank in range(ranks)
            ]


@pytest.fixture(scope="module")
def runs(folders, tmp_path_factory, request):
    chosen = [item for item in request.session.items if item.path == request.path]
    wanted = {item.callspec.params["case"] for item in chosen if hasattr(item, "callspec")}
    return Runs(tmp_path_factory.mktemp("runs"), folders, wanted)


def largest_difference(ours, theirs):
    fixed = {name for name in ours if name.endswith(BUFFERS)}
    assert ours.keys() - fixed == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


def largest_token_difference(ranks, truth, name):
    """Of the numbers that the leaders of all data ranks gave for each token."""
    together = {}
    for rank in ranks:
        together |= rank[name]
    assert together.keys() == set(range(len(truth[name])))
    return max(
        float((torch.from_numpy(together[i]) - values).abs().max()) for i, values in enumerate(truth[name])
    )


@pytest.mark.parametrize("case", ALL)
def test_agrees_with_transformers(case, runs, reference):
    ranks, truth = runs.of(case), reference(BY_NAME[case].model)
    differences = {
        **{name: largest_token_difference(ranks, truth, name) for name in OUTPUTS},
        "gradient": largest_difference(ranks[0]["gradients"], truth["gradients"]),
        "weight": largest_difference(ranks[0]["after"], truth["weights"]),
    }
    print(case, {name: f"{difference:.1e}" for name, difference in differences.items()})
    assert max(differences[name] for name in (*OUTPUTS, "gradient")) < 1e-5
    # 1 % of the learning rate: AdamW's first step divides a gradient by its size, and magnifies small errors
    assert differences["weight"] < 0.01 * UNCLIPPED["lr"]
    assert ranks[0]["metrics"]["train/grad_norm"] == pytest.approx(truth["norm"], rel=1e-5)
    assert ranks[0]["metrics"]["train/entropy"] == pytest.approx(truth["entropy"], rel=1e-5)


@pytest.mark.parametrize("case", ALL)
def test_another_policy_can_be_swapped_in(case, runs):
    for rank in runs.of(case):
        for i, log_probs in rank["log_probs"].items():
            assert (rank["changed"][i] != log_probs).any()
            assert (rank["swapped"][i] == log_probs).all()


@pytest.mark.parametrize("case", ALL)
def test_hands_out_what_it_loaded(case, runs, folders):
    stored = load_file(folders[BY_NAME[case].model] / "model.safetensors")
    given = runs.of(case)[0]["before"]
    assert given.keys() == stored.keys()
    assert all(torch.equal(given[name], stored[name]) for name in stored)


@pytest.mark.parametrize("case", TOGETHER)
def test_metrics_are_the_same_on_every_rank_and_layout(case, runs):
    first, *others = [rank["metrics"] for rank in runs.of(case)]
    train = {name: value for name, value in first.items() if name.startswith("train/")}
    for other in others:
        assert {name: other[name] for name in train} == train
    alone = runs.of(f"{BY_NAME[case].model}-alone-1")[0]["metrics"]
    assert train == pytest.approx({name: alone[name] for name in train}, rel=1e-4, abs=1e-6)
    assert train["train/approx_kl"] == 0.0


@pytest.fixture(scope="module")
def alone(folders):
    """`alone(model)`: one rank of it, whatever was trained on it before, and its spec."""
    known = {}

    def of(model):
        if model not in known:
            spec = make_spec(folders[model], **UNCLIPPED)
            known[model] = make_rank(folders[model], spec), spec
        return known[model]

    yield of
    for rank, _ in known.values():
        rank.close()


@pytest.mark.parametrize("case", TOGETHER)
def test_a_checkpoint_resumes_on_another_layout(case, runs, alone):
    model = BY_NAME[case].model
    there = runs.of(case)[0]
    here, spec = alone(model)
    here.load(runs.checkpoints / case)
    weights = dict(here.policy.parameters.gather())
    assert all(torch.equal(weights[name], there["after"][name]) for name in weights)
    first = runs.of(f"{model}-alone-1")[0]["after"]
    assert all(torch.equal(there["resumed"][name], first[name]) for name in first)
    here.load(runs.checkpoints / f"{model}-alone-1")
    sequences = make_masked_sequences()[:1]
    (step,) = here.policy.train(sequences, plan(sequences, spec))
    names = [name for name in step if name.startswith("train/")]
    assert {name: there["next"][name] for name in names} == pytest.approx(
        {name: step[name] for name in names}, rel=1e-4, abs=1e-6
    )
