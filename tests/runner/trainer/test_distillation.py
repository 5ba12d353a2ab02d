"""The teacher's most probable tokens and a step of distillation, against transformers and on every layout."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.plugins.algorithms.divergence import GeneralisedJSD
from rlrun.runner.batches.packing import all_micro_batches
from tests.converters.families.test_lora import make_adapter
from tests.resolved_specs import resolved
from tests.runner.trainer.layouts import pipeline
from tests.runner.trainer.trainer_cases import (
    Reference,
    make_masked_sequences,
    make_rank,
    make_sequences,
    make_spec,
    plan,
    run_ranks,
)
from tests.tiny_models import make_tiny_model

NAMES = ["log_probs", "top_ids", "top_log_probs"]
TEMPERATURE = 0.9
GKD = {"type": "gkd", "temperature": TEMPERATURE, "top_k": 20, "beta": 0.3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "qwen3"
    return make_tiny_model(path, scale=0.1, num_hidden_layers=4, pad_token_id=None)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Another architecture with the same tokens."""
    path = tmp_path_factory.mktemp("teacher") / "llama"
    return make_tiny_model(path, "llama", seed=5, num_hidden_layers=3, pad_token_id=None)


@pytest.fixture
def start(folder):
    ranks = []

    def make(algorithm, teacher, **trainer):
        spec = make_spec(folder, algorithm=algorithm, **trainer)
        spec = resolved(spec.model_dump(exclude_unset=True) | {"teacher": {"path": str(teacher)}})
        ranks.append(make_rank(folder, spec, teacher=teacher))
        return ranks[-1], spec

    yield make
    for rank in ranks:
        rank.close()


def taught(rank, sequences, steps):
    """The sequences with what the teacher says."""
    outputs = rank.teacher.outputs(sequences, all_micro_batches(steps), NAMES)
    return [
        dataclasses.replace(
            one,
            teacher_top_ids=outputs["top_ids"][i],
            teacher_top_log_probs=outputs["top_log_probs"][i],
        )
        for i, one in enumerate(sequences)
    ]


def distribution(model, sequence, temperature=TEMPERATURE):
    tokens = torch.from_numpy(sequence.tokens.astype(np.int64))
    logits = model(input_ids=tokens[None]).logits[0].float()[sequence.prompt_length - 1 : -1]
    return (logits / temperature).log_softmax(-1)


def test_the_teacher_s_top_tokens_are_those_of_transformers(start, teacher):
    rank, spec = start(GKD, teacher)
    sequences = make_masked_sequences()
    steps = plan(sequences, spec)
    known = taught(rank, sequences, steps)
    plain = rank.teacher.log_probs(sequences, all_micro_batches(steps))
    both = rank.teacher.outputs(sequences, all_micro_batches(steps), NAMES)["log_probs"]
    model = Reference(teacher, spec).model
    with torch.no_grad():
        for i, one in enumerate(known):
            np.testing.assert_array_equal(plain[i], both[i])
            everything = distribution(model, one)
            values, _ = everything.topk(20)
            ids = torch.from_numpy(one.teacher_top_ids).long()
            assert one.teacher_top_ids.dtype == np.int32 and ids.shape == (len(one.loss_mask), 20)
            rest = everything.scatter(1, ids, -torch.inf).logsumexp(1, keepdim=True)
            expected = torch.cat((everything.gather(1, ids), rest), 1)
            np.testing.assert_allclose(one.teacher_top_log_probs, expected, atol=1e-4)
            np.testing.assert_allclose(values, expected[:, :-1], atol=1e-4)


@pytest.mark.parametrize("top_k", [20, 320], ids=["some", "all"])
@pytest.mark.parametrize("reduction", ["per_sample_mean", "per_token", "dr_grpo"])
def test_a_step_is_that_of_plain_torch(start, folder, teacher, reduction, top_k):
    """The divergence and its gradient over several turns: a fifth of the tokens are not trained."""
    rank, spec = start(GKD | {"top_k": top_k}, teacher, reduction=reduction)
    sequences = make_sequences()
    (step,) = steps = plan(sequences, spec)
    known = taught(rank, sequences, steps)
    (metrics,) = rank.policy.train(known, steps)
    policy, target = Reference(folder, spec), Reference(teacher, spec)
    policy.model.zero_grad()
    total = 0.0
    for i, one in enumerate(sequences):
        ours = distribution(policy.model, one)
        with torch.no_grad():
            theirs = distribution(target.model, one)
        if top_k < 320:
            ids = theirs.topk(top_k).indices
            ours, theirs = (
                torch.cat(
                    (each.gather(1, ids), each.scatter(1, ids, -torch.inf).logsumexp(1, keepdim=True)), 1
                )
                for each in (ours, theirs)
            )
        loss = GeneralisedJSD(0.3)(ours, theirs)
        loss = step.scale[i] * (loss * torch.from_numpy(one.loss_mask)).sum()
        loss.backward()
        total += float(loss.detach())
    assert metrics["train/loss"] == pytest.approx(total, rel=1e-4)
    weights, norm = policy.step()
    assert metrics["train/grad_norm"] == pytest.approx(norm, rel=1e-3)
    ours = rank.policy.parameters.masters["lm_head.weight"]
    torch.testing.assert_close(ours.detach(), weights["lm_head.weight"], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("vocabulary", [288, 352], ids=["less padding", "more padding"])
def test_a_teacher_s_padding_is_never_among_its_top_tokens(start, tmp_path, vocabulary):
    other = make_tiny_model(tmp_path / "other", vocab=vocabulary)
    rank, spec = start(GKD | {"top_k": 320}, other)
    sequences = make_sequences()
    known = taught(rank, sequences, plan(sequences, spec))
    for one in known:
        assert one.teacher_top_ids.max() < min(vocabulary, 320)
        np.testing.assert_allclose(np.exp(one.teacher_top_log_probs).sum(1), 1, atol=1e-5)
    (metrics,) = rank.policy.train(known, plan(sequences, spec))
    assert np.isfinite(metrics["train/loss"]) and metrics["train/grad_norm"] > 0


def test_a_teacher_that_is_the_policy_leaves_it_as_it_is(start, folder):
    rank, spec = start(GKD, folder)
    sequences = make_sequences()
    steps = plan(sequences, spec)
    (metrics,) = rank.policy.train(taught(rank, sequences, steps), steps)
    assert abs(metrics["train/loss"]) < 1e-6 and metrics["train/grad_norm"] < 1e-5


def test_more_tokens_than_the_vocabulary_are_refused(start, teacher):
    with pytest.raises(ValueError, match="top_k of the algorithm must be at most 320"):
        start(GKD | {"top_k": 321}, teacher)


SHARED = {"share_prefixes": True, "max_tokens_per_rank": 400}
LAYOUTS = {
    "sharded, teacher split": ({"fsdp": 2}, {"tensor": 2}, {}),
    "split, teacher sharded": ({"tensor": 2}, None, {}),
    "context": ({"context": 2}, {"tensor": 2}, {}),
    "pipeline": (pipeline("1F1B"), None, {}),
    "shared prefixes": ({"fsdp": 2}, None, SHARED),
}
"""Of the policy, of the teacher, and further settings."""
ADAPTER_LAYOUTS = {"adapter, context": {"context": 2}, "adapter, pipeline": pipeline("1F1B")}
"""Of a policy whose teacher is the same model with another adapter."""


SELF_LAYOUTS = {
    "average, sharded": {"fsdp": 2},
    "average, tensor": {"tensor": 2},
    "average, pipeline": pipeline("1F1B"),
}
"""Of a policy that is its own teacher, by the average of its weights."""


@pytest.fixture(scope="module")
def ranks(folder, teacher, tmp_path_factory):
    """What each of one and of two ranks found, by layout."""
    worker, found = Path(__file__).parent / "distillation_worker.py", {}
    names = {"model.layers.0.self_attn.q_proj": (64, 64), "model.layers.1.mlp.up_proj": (96, 64)}
    adapter, _ = make_adapter(tmp_path_factory.mktemp("adapters") / "adapter", names, rank=2)
    for size in (1, 2):
        cases = [
            {
                "name": name,
                "policy": str(folder),
                "teacher": {"path": str(teacher)},
                "algorithm": GKD,
                "parallel": parallel if size == 2 else {},
                "sharding": sharding if size == 2 else None,
                "trainer": trainer,
            }
            for name, (parallel, sharding, trainer) in LAYOUTS.items()
        ]
        cases += [
            cases[0]
            | {
                "name": name,
                "teacher": {"adapter": str(adapter)},
                "parallel": parallel if size == 2 else {},
                "sharding": None,
                "trainer": {"lora": {"rank": 4}},
            }
            for name, parallel in ADAPTER_LAYOUTS.items()
        ]
        cases += [
            cases[0]
            | {
                "name": name,
                "teacher": {"weights": "average", "update_rate": 0.5, "prompt": "{prompt}!"},
                "parallel": parallel if size == 2 else {},
                "sharding": None,
            }
            for name, parallel in SELF_LAYOUTS.items()
        ]
        out = tmp_path_factory.mktemp(f"ranks-{size}")
        run_ranks(worker, size, cases, out)
        found[size] = [torch.load(out / f"{rank}.pt", weights_only=False) for rank in range(size)]
    return found


@pytest.mark.slow  # ten layouts on two ranks take a minute
@pytest.mark.parametrize("layout", [*LAYOUTS, *ADAPTER_LAYOUTS, *SELF_LAYOUTS])
def test_every_layout_takes_the_steps_of_one_rank(ranks, layout):
    alone = ranks[1][0][layout]
    for rank in (each[layout] for each in ranks[2]):
        for i, log_probs in alone["top_log_probs"].items():
            np.testing.assert_allclose(rank["top_log_probs"][i], log_probs, atol=2e-4)
            same = (rank["top_ids"][i] == alone["top_ids"][i]).mean() if len(log_probs) else 1.0
            assert same > 0.95, "only tokens of equal probability may change places"
        for i, log_probs in alone["later"].items():
            np.testing.assert_allclose(rank["later"][i], log_probs, atol=5e-4)
        for ours, theirs in zip(rank["metrics"], alone["metrics"], strict=True):
            assert ours["train/divergence"] == pytest.approx(theirs["train/divergence"], rel=1e-3)
            assert ours["train/grad_norm"] == pytest.approx(theirs["train/grad_norm"], rel=5e-3)
    losses = [each["train/loss"] for each in alone["metrics"]]
    moved = max(np.abs(alone["later"][i] - alone["log_probs"][i]).max(initial=0) for i in alone["later"])
    assert losses[-1] < losses[0] and (moved > 0) == (layout in SELF_LAYOUTS)
