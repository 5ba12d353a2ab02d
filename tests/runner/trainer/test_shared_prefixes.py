"""Training with shared prefixes is training without them: log-probs, loss and gradients, in every layout."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.models.families.table import NATIVE
from rlrun.runner.batches.packing import all_micro_batches
from rlrun.specs.sections.trainer import ParallelSpec
from tests.runner.trainer.layouts import FULL, SELECTIVE, pipeline
from tests.runner.trainer.prefix_worker import measure
from tests.runner.trainer.trainer_cases import MODELS, make_branches, make_rank, make_spec, plan, run_ranks
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("prefix_worker.py")
TOLERANCE = 1e-5
LAYOUTS = {
    "shards": ("qwen3", {"fsdp": 2}, {}),
    "replicas": ("qwen3", {"replicate": 2}, {}),
    "tensor": ("qwen3", {"tensor": 2}, {}),
    "tensor without sequence parallel": ("qwen3", {"tensor": 2, "sequence_parallel": False}, {}),
    "pipeline": ("qwen3", pipeline("1F1B"), {}),
    "interleaved": ("qwen3", pipeline("Interleaved1F1B"), {}),
    "zero bubble": ("qwen3", pipeline("ZBVZeroBubble"), {}),
    "experts": ("qwen3-moe", {"fsdp": 2, "expert": 2}, {}),
    "tensor and experts": ("qwen3-moe", {"tensor": 2, "expert": 2}, {}),
    "latent pipeline": ("deepseek", pipeline("1F1B"), {}),
    "latent tensor": ("glm-flash", {"tensor": 2}, {}),
    "all": ("qwen3-moe", {"fsdp": 2, "tensor": 2, "expert": 4}, SELECTIVE),
    "pipeline and tensor": ("qwen3", pipeline("1F1B", tensor=2), {}),
}
FAST = ("shards", "tensor", "pipeline", "experts")
FAMILIES = [name for name in MODELS if (row := NATIVE.get(MODELS[name]["family"])) and row.prefixes]
FAMILIES.remove("glm-5-ties")  # of equal keys torch chooses others where a tree has further ones


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """`folders(model)`: the folder of a test model, with weights that are small enough for float32."""
    root, known = tmp_path_factory.mktemp("models"), {}

    def of(name):
        if name not in known:
            settings = {"pad_token_id": None, "scale": 0.05} | MODELS[name]
            known[name] = make_tiny_model(root / name, **settings)
        return known[name]

    return of


def check(results, most_tokens=0.75):
    """`results`: of a trainer without and with shared prefixes, which computed fewer tokens."""
    separate, shared = results[False], results[True]
    assert shared["tokens"] < most_tokens * separate["tokens"]
    assert shared["metrics"] == pytest.approx(separate["metrics"], rel=TOLERANCE, abs=TOLERANCE)
    for i in set(separate["log_probs"]) & set(shared["log_probs"]):
        np.testing.assert_allclose(shared["log_probs"][i], separate["log_probs"][i], rtol=0, atol=TOLERANCE)
    assert set(shared["gradients"]) == set(separate["gradients"])
    for name, gradient in separate["gradients"].items():
        if gradient.numel():  # rank 0 has those of all stages
            difference = (shared["gradients"][name] - gradient).abs().max()
            assert difference < TOLERANCE * max(1.0, float(gradient.abs().max())), name


@pytest.mark.parametrize("model", FAMILIES)
def test_every_family_on_one_rank(folders, model):
    case, results = {"folder": str(folders(model)), "parallel": {}}, {}
    for share in (False, True):
        trainer, results[share] = measure(case, share=share)
        trainer.close()
    check(results)
    assert len(results[True]["log_probs"]) == len(make_branches())


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow if seed > 2 else ()) for seed in range(8)]
)
def test_random_tries_on_one_rank(folders, seed):
    case, results = {"folder": str(folders("qwen3")), "parallel": {}, "seed": seed}, {}
    for share in (False, True):
        trainer, results[share] = measure(case, share=share)
        trainer.close()
    check(results, most_tokens=0.9)


@pytest.mark.parametrize(
    "settings",
    [
        FULL,
        SELECTIVE,
        {"reduction": "per_token"},
        {"micro_batch_size": 4},
        pytest.param({"compile": True}, marks=pytest.mark.slow),
    ],
    ids=lambda settings: "-".join(map(str, settings.values())),
)
def test_other_settings(folders, settings):
    case, results = {"folder": str(folders("qwen3")), "parallel": {}, "trainer": settings}, {}
    for share in (False, True):
        trainer, results[share] = measure(case, share=share)
        trainer.close()
    check(results)


def test_adapters_get_the_same_gradients(folders):
    folder, found = folders("qwen3"), []
    for share in (False, True):
        spec = make_spec(folder, lr=1e-12, lora={"rank": 4, "alpha": 8}, share_prefixes=share)
        trainer, sequences = make_rank(folder, spec), make_branches()
        trainer.policy.train(sequences, plan(sequences, spec))
        masters = trainer.policy.parameters.masters
        found.append({name: master.grad for name, master in masters.items() if master.grad is not None})
        trainer.close()
    assert found[0].keys() == found[1].keys()
    assert all("lora" in name for name in found[0])
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=0, atol=TOLERANCE)


def test_replayed_experts_are_those_of_each_token(folders):
    """The pass for old log-probs notes a shared token's experts, and both optimizer steps replay them."""
    folder, found = folders("qwen3-moe"), []
    for share in (False, True):
        spec = make_spec(folder, lr=1e-3, moe={"routing_replay": "trainer"}, share_prefixes=share)
        trainer, sequences = make_rank(folder, spec), make_branches()
        steps = plan(sequences, spec, optimizer_steps=2)
        trainer.policy.log_probs(sequences, all_micro_batches(steps))
        noted = trainer.policy._replay._noted
        metrics = trainer.policy.train(sequences, steps)
        found.append((noted, [step["train/grad_norm"] for step in metrics]))
        trainer.close()
    (separate, norms), (shared, shared_norms) = found
    for i, experts in separate.items():
        assert (shared[i] == experts).all()
    assert shared_norms == pytest.approx(norms, rel=1e-4)


def test_a_model_that_cannot_share_prefixes_is_refused(folders):
    spec = make_spec(folders("gpt-oss"), share_prefixes=True)
    with pytest.raises(ValueError, match="share_prefixes is not supported for gpt_oss: some layers see a w"):
        make_rank(folders("gpt-oss"), spec)


@pytest.fixture(scope="module")
def together(folders, tmp_path_factory):
    """`together(layout)`: every rank's results on `make_branches` and on a random trie of each layout;
    layouts on as many ranks share a process group.
    """
    known = {}

    def of(layout, only):
        if layout not in known:
            out, ranks = tmp_path_factory.mktemp("ranks"), ranks_of(layout)
            names = [name for name in only if ranks_of(name) == ranks]
            cases = [
                {"name": f"{name}-{seed}", "folder": str(folders(model)), "parallel": parallel}
                | {"trainer": trainer, "seed": seed}
                for name in names
                for model, parallel, trainer in [LAYOUTS[name]]
                for seed in (None, seed_of(name))
            ]
            run_ranks(WORKER, ranks, cases, out)
            for name in names:
                files = [
                    out / f"{name}-{seed}-{rank}.pt"
                    for seed in (None, seed_of(name))
                    for rank in range(ranks)
                ]
                known[name] = [torch.load(file, weights_only=False) for file in files]
        return known[layout]

    return of


def seed_of(layout):
    """Each layout has a trie of its own."""
    return 100 + list(LAYOUTS).index(layout)


def ranks_of(layout):
    return ParallelSpec(**LAYOUTS[layout][1]).world_size


@pytest.mark.parametrize("layout", FAST)
def test_on_two_ranks(together, layout):
    for results in together(layout, FAST):
        check(results, most_tokens=0.9)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name not in FAST])
def test_on_every_layout(together, layout):
    for results in together(layout, [name for name in LAYOUTS if name not in FAST]):
        check(results, most_tokens=0.9)
