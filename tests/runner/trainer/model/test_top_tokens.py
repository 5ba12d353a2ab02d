"""The teacher's most probable tokens and the divergence from them, against plain torch in float64."""

from dataclasses import replace

import pytest
import torch

from rlrun.plugins.algorithms.divergence import GeneralisedJSD
from rlrun.runner.trainer.model.head import HeadQuery, ResponseHead
from rlrun.runner.trainer.model.top_tokens import Comparison, TopTokens, top_tokens
from rlrun.specs.needs import LEAST_REST
from tests.runner.trainer.model.test_head import TOKENS, VOCABULARY, make_head, make_support

ROWS = torch.tensor([1, 2, 3, 7, 8, 9, 10])
R = len(ROWS)


def comparison(beta=0.5, top_k=6, temperature=0.8, vocabulary=VOCABULARY):
    return Comparison(GeneralisedJSD(beta), top_k, temperature, vocabulary)


def teachers_logits(dtype=torch.float64):
    return 3 * torch.randn(R, VOCABULARY, dtype=dtype, generator=torch.Generator().manual_seed(3))


def outcomes(logits, ids, temperature):
    """Log-probs of the tokens and of all others together."""
    log_probs = (logits / temperature).log_softmax(-1)
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(1, ids, True)
    rest = log_probs.masked_fill(chosen, -torch.inf).logsumexp(1, keepdim=True)
    return torch.cat((log_probs.gather(1, ids), rest), 1)


def divergences(logits, asked, teacher):
    """The comparison in plain torch."""
    ids = teacher.topk(asked.top_k).indices
    policy, target = (outcomes(each, ids, asked.temperature) for each in (logits, teacher))
    if asked.top_k == VOCABULARY:
        policy, target = policy[:, :-1], target[:, :-1]
    return asked.distance(policy, target)


def asked_head(asked, teacher, chunk, dtype=torch.float64, **query):
    module = make_head(dtype)
    with torch.no_grad():
        module.weight.normal_(generator=torch.Generator().manual_seed(1))
    hidden = torch.randn(1, TOKENS, module.weight.shape[1], generator=torch.Generator().manual_seed(2))
    hidden = hidden.to(dtype).requires_grad_()
    tokens = top_tokens(teacher, asked, None)
    targets = torch.arange(R)
    module.query = HeadQuery(ROWS, targets, 0.7, chunk, comparison=asked, teacher=tokens, **query)
    return module, hidden


def gradients(loss, module, hidden):
    return torch.autograd.grad(loss, (hidden, module.weight))


@pytest.mark.parametrize("top_k", [1, 6, VOCABULARY - 1, VOCABULARY])
@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("chunk", [2, 100])
def test_a_divergence_and_its_gradient_are_those_of_all_logits_at_once(top_k, beta, chunk):
    asked, teacher, weights = comparison(beta, top_k), teachers_logits(), torch.randn(R).double()
    module, hidden = asked_head(asked, teacher, chunk)
    ours = module(hidden)[2]
    exact = divergences(hidden[0, ROWS] @ module.weight.t(), asked, teacher)
    torch.testing.assert_close(ours, exact, rtol=1e-10, atol=1e-12)
    found, expected = (gradients((weights * each).sum(), module, hidden) for each in (ours, exact))
    for own, their in zip(found, expected, strict=True):
        torch.testing.assert_close(own, their, rtol=1e-10, atol=1e-12)


def test_the_gradients_of_divergence_log_probs_and_entropy_are_added():
    asked, teacher = comparison(), teachers_logits()
    module, hidden = asked_head(asked, teacher, 3, entropy_grad=True)
    outputs = module(hidden)
    logits = hidden[0, ROWS] @ module.weight.t()
    everything = (logits / 0.7).log_softmax(-1)
    chosen, entropy = everything.diagonal(), -(everything.exp() * everything).sum(1)
    exact = chosen.sum() + 2 * entropy.sum() + 3 * divergences(logits, asked, teacher).sum()
    ours = outputs[0].sum() + 2 * outputs[1].sum() + 3 * outputs[2].sum()
    for own, their in zip(gradients(ours, module, hidden), gradients(exact, module, hidden), strict=True):
        torch.testing.assert_close(own, their, rtol=1e-4, atol=1e-4)  # those of log-probs are float32


def test_fewer_tokens_never_make_a_divergence_larger():
    logits, teacher = teachers_logits().flip(0), teachers_logits()
    for beta in (0.0, 0.5, 1.0):
        sizes = (1, 5, 20, VOCABULARY)
        values = torch.stack([divergences(logits, comparison(beta, k), teacher) for k in sizes])
        assert (values.diff(dim=0) > -1e-12).all() and (values > -1e-15).all()


@pytest.mark.parametrize("top_k", [3, VOCABULARY])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_policy_that_is_the_teacher_has_no_divergence_and_no_gradient(top_k, beta):
    module, hidden = asked_head(comparison(beta, top_k), teachers_logits(), 4)
    own = (hidden[0, ROWS] @ module.weight.t()).detach()
    module, hidden = asked_head(comparison(beta, top_k), own, 4)
    divergence = module(hidden)[2]
    assert divergence.abs().max() < 1e-14
    assert all(gradient.abs().max() < 1e-14 for gradient in gradients(divergence.sum(), module, hidden))


def test_improbable_tokens_keep_their_digits():
    """The policy is so sure of the teacher's tokens that 1 minus their probability would be 0 in float32."""
    teacher = torch.zeros(1, VOCABULARY)
    teacher[0, :2] = torch.tensor([30.0, 29.0])
    tokens = top_tokens(teacher, comparison(top_k=2, temperature=1.0), None)
    exact = outcomes(teacher.double(), tokens.ids, 1.0)
    assert exact[0, -1] < -26
    torch.testing.assert_close(tokens.log_probs.double(), exact, rtol=1e-6, atol=1e-6)


def test_the_whole_vocabulary_leaves_no_other_tokens():
    tokens = top_tokens(teachers_logits(), comparison(top_k=VOCABULARY), None)
    assert (tokens.log_probs[:, -1] == LEAST_REST).all()
    torch.testing.assert_close(tokens.log_probs[:, :-1].exp().sum(1), torch.ones(R).double())


def test_tokens_that_pad_a_teacher_s_vocabulary_do_not_count():
    teacher = teachers_logits()
    teacher[:, 40:] += 50
    padded, cut = (top_tokens(each, comparison(vocabulary=40), None) for each in (teacher, teacher[:, :40]))
    assert torch.equal(padded.ids, cut.ids) and padded.ids.max() < 40
    torch.testing.assert_close(padded.log_probs, cut.log_probs)


def test_a_sampling_mask_does_not_cut_the_divergence_and_still_cuts_log_probs():
    teacher, targets = teachers_logits(torch.float32), torch.arange(R)
    support, _ = make_support(targets)
    plain, hidden = asked_head(comparison(), teacher, 3, torch.float32)
    masked, _ = asked_head(comparison(), teacher, 3, torch.float32, support=support)
    whole, cut = plain(hidden), masked(hidden)
    assert torch.equal(whole[2], cut[2]) and not torch.equal(whole[0], cut[0])
    for own, their in zip(
        gradients(whole[2].sum(), plain, hidden), gradients(cut[2].sum(), masked, hidden), strict=True
    ):
        torch.testing.assert_close(own, their)


@pytest.mark.parametrize("masked", [False, True])
def test_kept_logits_and_made_again_give_the_same_gradients(masked):
    support = make_support(torch.arange(R))[0] if masked else None
    found = []
    for room in (0, 2**20):
        module, hidden = asked_head(
            comparison(), teachers_logits(torch.bfloat16), 3, torch.bfloat16, support=support, kept_bytes=room
        )
        log_probs, _, divergence = module(hidden)
        found.append((divergence, *gradients(divergence.sum() + log_probs.sum(), module, hidden)))
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)


def test_float32_logits_of_a_bfloat16_head_are_compared_too():
    config = ResponseHead.Config(in_features=16, out_features=VOCABULARY, wide=True)
    asked, teacher = comparison(), teachers_logits(torch.float32)
    narrow, hidden = asked_head(asked, teacher, 3, torch.bfloat16)
    wide = ResponseHead(config).to(torch.bfloat16)
    wide.load_state_dict(narrow.state_dict())
    wide.query = narrow.query
    exact = divergences(hidden[0, ROWS].float() @ wide.weight.float().t(), asked, teacher)
    divergence = wide(hidden)[2]
    torch.testing.assert_close(divergence, exact, rtol=1e-5, atol=1e-5)
    for own, their in zip(
        gradients(divergence.sum(), wide, hidden), gradients(exact.sum(), wide, hidden), strict=True
    ):
        torch.testing.assert_close(own.float(), their.float(), rtol=2e-2, atol=1e-2)


def test_a_head_without_rows_returns_as_many_outputs():
    asked = comparison()
    module, hidden = asked_head(asked, teachers_logits(), 3)
    nothing = torch.zeros(0, dtype=torch.int64)
    empty = TopTokens(nothing[:, None], torch.zeros(0, 2))
    module.query = replace(module.query, rows=nothing, targets=nothing, teacher=empty)
    assert [len(output) for output in module(hidden)] == [0, 0, 0]
    module.query = replace(module.query, teacher=None)
    assert len(module(hidden)) == 2 + 2 * asked.top_k + 1
