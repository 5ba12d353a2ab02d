"""A teacher that is the policy with another prompt: its step against transformers in float64, its weights,
and its checkpoint.
"""

import dataclasses

import numpy as np
import pytest
import torch

from rlrun.plugins.algorithms.divergence import GeneralisedJSD
from rlrun.runner.batches.packing import all_micro_batches
from tests.resolved_specs import resolved
from tests.runner.trainer.trainer_cases import Reference, make_rank, make_sequences, make_spec, plan
from tests.tiny_models import make_tiny_model

NAMES = ["log_probs", "top_ids", "top_log_probs"]
TEMPERATURE, TOP_K = 0.9, 20
GKD = {"type": "gkd", "temperature": TEMPERATURE, "top_k": TOP_K, "beta": 0.3}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "qwen3"
    return make_tiny_model(path, scale=0.1, num_hidden_layers=2, pad_token_id=None)


@pytest.fixture
def start(folder):
    ranks = []

    def make(weights, **trainer):
        spec = make_spec(folder, algorithm=GKD, **trainer)
        teacher = {"weights": weights, "prompt": "{prompt}!"}
        if weights == "average":
            teacher["update_rate"] = 0.25
        spec = resolved(spec.model_dump(exclude_unset=True) | {"teacher": teacher})
        ranks.append(make_rank(folder, spec))
        return ranks[-1], spec

    yield make
    for rank in ranks:
        rank.close()


def told_more(sequences):
    """The sequences with the same responses after other, longer prompts."""
    rng = np.random.default_rng(4)
    return [
        dataclasses.replace(
            one,
            tokens=np.concatenate([rng.integers(0, 320, 7 + i), one.tokens]).astype(np.int32),
            prompt_length=one.prompt_length + 7 + i,
        )
        for i, one in enumerate(sequences)
    ]


def taught(rank, spec, sequences):
    read = told_more(sequences)
    outputs = rank.teacher.outputs(read, all_micro_batches(plan(read, spec)), NAMES)
    return [
        dataclasses.replace(
            one,
            teacher_top_ids=outputs["top_ids"][i],
            teacher_top_log_probs=outputs["top_log_probs"][i],
            distilled=np.full(len(one.loss_mask), i % 3 > 0, np.float32),
        )
        for i, one in enumerate(sequences)
    ]


def outcomes(model, sequence, ids=None):
    """`[R, k + 1]` log-probs in float64 of the most probable tokens, or of `ids`, and of all others."""
    tokens = torch.from_numpy(sequence.tokens.astype(np.int64))
    logits = model(input_ids=tokens[None]).logits[0][sequence.prompt_length - 1 : -1]
    everything = (logits / TEMPERATURE).log_softmax(-1)
    ids = everything.topk(TOP_K).indices if ids is None else ids
    rest = everything.scatter(1, ids, -torch.inf).logsumexp(1, keepdim=True)
    return ids, torch.cat((everything.gather(1, ids), rest), 1)


@pytest.mark.parametrize("weights", ["initial", "current", "average"])
def test_a_step_is_that_of_float64(start, folder, weights):
    rank, spec = start(weights)
    sequences = make_sequences()
    (step,) = steps = plan(sequences, spec)
    (metrics,) = rank.policy.train(taught(rank, spec, sequences), steps)
    policy, teacher = Reference(folder, spec), Reference(folder, spec)
    policy.model.double().zero_grad()
    teacher.model.double()
    total = 0.0
    for i, (one, read) in enumerate(zip(sequences, told_more(sequences), strict=True)):
        with torch.no_grad():
            ids, theirs = outcomes(teacher.model, read)
        _, ours = outcomes(policy.model, one, ids)
        counts = torch.from_numpy(one.loss_mask) * float(i % 3 > 0)
        loss = step.scale[i] * (GeneralisedJSD(0.3)(ours, theirs) * counts).sum()
        loss.backward()
        total += float(loss.detach())
    norm = torch.cat([each.grad.flatten() for each in policy.model.parameters()]).norm()
    assert total > 0.01
    assert metrics["train/loss"] == pytest.approx(total, rel=1e-5)
    assert metrics["train/divergence"] == pytest.approx(total, rel=1e-5)
    assert metrics["train/grad_norm"] == pytest.approx(float(norm), rel=1e-4)


def test_which_weights_the_teacher_has_after_a_step(start, folder):
    sequences, found = make_sequences(), {}
    for weights in ("initial", "current", "average"):
        rank, spec = start(weights)
        first = next(iter(rank.policy.parameters.host_copy().values())).clone()
        before = taught(rank, spec, sequences)
        rank.policy.train(before, plan(sequences, spec))
        if weights == "average":
            rank.update_teacher()
            ours = next(iter(rank.policy.parameters.host_copy().values()))
            average = next(iter(rank.teacher._weights.values()))
            torch.testing.assert_close(average, first + 0.25 * (ours - first))
        after = taught(rank, spec, sequences)
        found[weights] = max(
            np.abs(one.teacher_top_log_probs - other.teacher_top_log_probs).max()
            for one, other in zip(before, after, strict=True)
        )
    assert found["initial"] == 0 < found["average"] < found["current"]


def test_an_average_is_in_the_checkpoint(start, tmp_path):
    sequences = make_sequences()
    rank, spec = start("average")
    rank.policy.train(taught(rank, spec, sequences), plan(sequences, spec))
    rank.update_teacher()
    rank.save(tmp_path)
    other, _ = start("average")
    other.load(tmp_path)
    for name, average in rank.teacher._weights.items():
        torch.testing.assert_close(other.teacher._weights[name], average, rtol=0, atol=0)
    for one, two in zip(taught(rank, spec, sequences), taught(other, spec, sequences), strict=True):
        np.testing.assert_array_equal(one.teacher_top_log_probs, two.teacher_top_log_probs)
