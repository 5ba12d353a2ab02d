"""The trainer against plain transformers in float32, on every layout."""

from pathlib import Path

import pytest
import torch
from tiny_models import make_tiny_model
from trainer_cases import MODELS, Reference, make_rank, make_sequences, make_spec, plan, run_ranks

WORKER = Path(__file__).with_name("parity_worker.py")
LAYOUTS = {
    "one": {},
    "fsdp2": {"fsdp": 2},
    "tensor2": {"tensor": 2},
    "replicate2": {"replicate": 2},
    "fsdp2-tensor2": {"fsdp": 2, "tensor": 2},
    "replicate2-fsdp2": {"replicate": 2, "fsdp": 2},
}
RANKS = {1: ["one"], 2: ["fsdp2", "tensor2", "replicate2"], 4: ["fsdp2-tensor2", "replicate2-fsdp2"]}
UNCLIPPED = {"max_grad_norm": 1e9}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {
        name: make_tiny_model(root / name, pad_token_id=None, scale=0.1, **MODELS[name]) for name in MODELS
    }


@pytest.fixture(scope="module")
def references(folders):
    results = {}
    for name, folder in folders.items():
        spec = make_spec(folder, **UNCLIPPED)
        reference = Reference(folder, spec)
        sequences = make_sequences()
        (step,) = plan(sequences, spec)
        with torch.no_grad():
            pairs = [reference.log_probs(sequence) for sequence in sequences]
        gradients = reference.gradients(sequences, step.scale, entropy_coef=0.1)
        weights, norm = reference.step()
        results[name] = {
            "log_probs": [log_probs for log_probs, _ in pairs],
            "entropy": sum(
                step.scale[i] * float((entropy * torch.from_numpy(sequences[i].loss_mask)).sum())
                for i, (_, entropy) in enumerate(pairs)
            ),
            "gradients": gradients,
            "weights": weights,
            "norm": norm,
        }
    return results


@pytest.fixture(scope="module")
def results(folders, tmp_path_factory):
    """What every rank of every case gave; one process group for each number of ranks."""
    found = {}
    checkpoints = tmp_path_factory.mktemp("checkpoints")
    for world_size, layouts in RANKS.items():
        out = tmp_path_factory.mktemp(f"ranks-{world_size}")
        cases = [
            {
                "name": f"{model}-{layout}",
                "folder": str(folder),
                "parallel": LAYOUTS[layout],
                "trainer": UNCLIPPED,
                "checkpoint": str(checkpoints / f"{model}-{layout}"),
                "resume": str(checkpoints / f"{model}-one") if layout != "one" else None,
            }
            for layout in layouts
            for model, folder in folders.items()
        ]
        run_ranks(WORKER, world_size, cases, out)
        for case in cases:
            found[case["name"]] = [
                torch.load(out / f"{case['name']}-{rank}.pt", weights_only=False)
                for rank in range(world_size)
            ]
    return found | {"checkpoints": checkpoints}


def largest_difference(ours, theirs):
    assert ours.keys() == theirs.keys()
    return max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_agrees_with_transformers(model, layout, results, references):
    ranks, expected = results[f"{model}-{layout}"], references[model]
    together = {}
    for rank in ranks:
        together |= rank["log_probs"]
    assert together.keys() == set(range(len(expected["log_probs"])))
    for i, log_probs in enumerate(expected["log_probs"]):
        torch.testing.assert_close(torch.from_numpy(together[i]), log_probs, atol=1e-5, rtol=0)
    assert largest_difference(ranks[0]["gradients"], expected["gradients"]) < 1e-5
    assert largest_difference(ranks[0]["after"], expected["weights"]) < 1e-5
    assert ranks[0]["metrics"]["train/grad_norm"] == pytest.approx(expected["norm"], rel=1e-5)
    assert ranks[0]["metrics"]["train/entropy"] == pytest.approx(expected["entropy"], rel=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_hands_out_what_it_loaded(model, layout, results, folders):
    from safetensors.torch import load_file

    stored = load_file(folders[model] / "model.safetensors")
    given = results[f"{model}-{layout}"][0]["before"]
    assert given.keys() == stored.keys()
    assert all(torch.equal(given[name], stored[name]) for name in stored)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("model", MODELS)
def test_metrics_are_the_same_on_every_rank_and_layout(model, layout, results):
    first, *others = [rank["metrics"] for rank in results[f"{model}-{layout}"]]
    train = {name: value for name, value in first.items() if name.startswith("train/")}
    for other in others:
        assert {name: other[name] for name in train} == train
    alone = results[f"{model}-one"][0]["metrics"]
    assert train == pytest.approx({name: alone[name] for name in train}, rel=1e-4, abs=1e-6)
    assert train["train/approx_kl"] == 0.0


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout != "one"])
@pytest.mark.parametrize("model", MODELS)
def test_a_checkpoint_resumes_on_another_layout(model, layout, results, folders):
    here = make_rank(folders[model], spec := make_spec(folders[model], **UNCLIPPED))
    try:
        here.load(results["checkpoints"] / f"{model}-{layout}")
        assert torch.equal(
            dict(here._parameters.gather())["model.norm.weight"],
            results[f"{model}-{layout}"][0]["after"]["model.norm.weight"],
        )
        there = results[f"{model}-{layout}"][0]["resumed"]
        alone = results[f"{model}-one"][0]["after"]
        assert all(torch.equal(there[name], alone[name]) for name in alone)
        here.load(results["checkpoints"] / f"{model}-one")
        sequences = make_sequences()[:1]
        (expected,) = here.train(sequences, plan(sequences, spec))
        next_step = results[f"{model}-{layout}"][0]["next"]
        names = [name for name in expected if name.startswith("train/")]
        assert {name: next_step[name] for name in names} == pytest.approx(
            {name: expected[name] for name in names}, rel=1e-4, abs=1e-6
        )
    finally:
        here.close()
