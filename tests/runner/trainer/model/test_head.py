from dataclasses import replace

import numpy as np
import pytest
import torch

from rlrun.plugins.sampling_mask import SamplingMask
from rlrun.runner.trainer.model.head import HeadQuery, ResponseHead, _kept_rows
from rlrun.runner.trainer.model.masked_logits import Support

TOKENS, HIDDEN, VOCABULARY = 12, 16, 50


def make_head(dtype=torch.float64):
    torch.manual_seed(0)
    module = ResponseHead(ResponseHead.Config(in_features=HIDDEN, out_features=VOCABULARY))
    return module.to(dtype)


def plain(module, hidden, rows, targets, temperature):
    logits = (hidden[0, rows] @ module.weight.t()) / temperature
    everything = logits.log_softmax(-1)
    entropy = -(everything.exp() * everything).sum(-1)
    return everything.gather(1, targets[:, None])[:, 0], entropy


def gradients(outputs, module, hidden, output_gradients):
    loss = sum((output * gradient).sum() for output, gradient in zip(outputs, output_gradients, strict=True))
    return torch.autograd.grad(loss, (hidden, module.weight))


@pytest.mark.parametrize("chunk", [1, 5, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("entropy_grad", [False, True])
def test_values_and_gradients_are_those_of_all_logits_at_once(chunk, temperature, entropy_grad):
    module = make_head(torch.float32)
    hidden = torch.randn(1, TOKENS, HIDDEN, requires_grad=True)
    rows, targets = torch.tensor([1, 2, 3, 7, 8, 9, 10]), torch.randint(VOCABULARY, (7,))
    module.query = HeadQuery(rows, targets, temperature, chunk, entropy_grad)
    output_gradients = torch.randn(7), torch.randn(7) * entropy_grad
    ours, expected = module(hidden), plain(module, hidden, rows, targets, temperature)
    for value, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(value, reference, atol=2e-6, rtol=1e-5)
    used = output_gradients if entropy_grad else output_gradients[:1]
    got = gradients(ours[: len(used)], module, hidden, used)
    for value, reference in zip(got, gradients(expected[: len(used)], module, hidden, used), strict=True):
        torch.testing.assert_close(value, reference, atol=2e-6, rtol=1e-5)


def test_kept_logits_and_made_again_give_the_same_gradients():
    module = make_head(torch.bfloat16)
    hidden = torch.randn(1, TOKENS, HIDDEN).bfloat16().requires_grad_()
    rows, targets = torch.arange(TOKENS - 1), torch.randint(VOCABULARY, (TOKENS - 1,))
    found = []
    for room in (0, 9 * VOCABULARY * 2, 2**20):  # none, two of the chunks, all
        module.query = HeadQuery(rows, targets, 0.9, 4, kept_bytes=room)
        found.append(gradients(module(hidden)[:1], module, hidden, [torch.ones(TOKENS - 1)]))
    for first, *others in zip(*found, strict=True):
        assert all(torch.equal(first, other) for other in others)


def test_chunks_are_kept_while_they_fit():
    module = make_head(torch.bfloat16)
    hidden = torch.randn(20, HIDDEN).bfloat16()
    nothing = torch.zeros(0, dtype=torch.int64)
    for room, rows in ((0, 0), (3, 0), (4, 4), (11, 8), (20, 20), (1000, 20)):
        query = HeadQuery(nothing, nothing, 1.0, 4, kept_bytes=room * VOCABULARY * 2)
        assert _kept_rows(hidden, module.weight, query) == rows


LENGTHS = [3, 0, 1, VOCABULARY, 7, 2, 20]
"""Candidates of seven tokens; 0: the whole vocabulary."""


def make_support(targets):
    """Candidates of the targets, and which tokens they exclude as `[R, VOCABULARY]`."""
    rng = np.random.default_rng(0)
    allowed = torch.tensor([[length == 0] * VOCABULARY for length in LENGTHS])
    ids = []
    for row, (target, length) in enumerate(zip(targets.tolist(), LENGTHS, strict=True)):
        others = rng.permutation([token for token in range(VOCABULARY) if token != target])
        own = [target, *others[: length - 1].tolist()] if length else []
        allowed[row, own] = True
        ids += own
    mask = SamplingMask(np.array(ids, np.int32), np.array(LENGTHS, np.int32))
    return Support.from_mask(mask, torch.device("cpu")), ~allowed


@pytest.mark.parametrize("chunk", [1, 3, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.05, 3.0])
@pytest.mark.parametrize("entropy_grad", [False, True])
def test_a_support_is_a_softmax_over_its_tokens_alone(chunk, temperature, entropy_grad):
    module = make_head(torch.float32)
    hidden = torch.randn(1, TOKENS, HIDDEN, requires_grad=True)
    rows, targets = torch.tensor([1, 2, 3, 7, 8, 9, 10]), torch.randint(VOCABULARY, (7,))
    support, excluded = make_support(targets)
    module.query = HeadQuery(rows, targets, temperature, chunk, entropy_grad, support)
    logits = (hidden[0, rows] @ module.weight.t()) / temperature
    everything = logits.masked_fill(excluded, -torch.inf).log_softmax(-1)
    entropy = -(everything.exp() * everything.masked_fill(excluded, 0)).sum(-1)
    expected = everything.gather(1, targets[:, None])[:, 0], entropy
    ours = module(hidden)
    for value, reference in zip(ours, expected, strict=True):
        torch.testing.assert_close(value, reference, atol=1e-5, rtol=1e-5)
    assert ours[0][2] == 0.0  # a single candidate
    output_gradients = torch.randn(7), torch.randn(7)
    used = output_gradients if entropy_grad else output_gradients[:1]
    got = gradients(ours[: len(used)], module, hidden, used)
    for value, reference in zip(got, gradients(expected[: len(used)], module, hidden, used), strict=True):
        torch.testing.assert_close(value, reference, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("chunk", [3, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_the_sum_of_squared_probabilities_has_no_gradient(chunk, temperature):
    module = make_head(torch.float32)
    hidden = torch.randn(1, TOKENS, HIDDEN, requires_grad=True)
    rows, targets = torch.tensor([1, 2, 3, 7, 8, 9, 10]), torch.randint(VOCABULARY, (7,))
    for support, excluded in [make_support(targets), (None, torch.zeros(7, VOCABULARY, dtype=torch.bool))]:
        module.query = HeadQuery(rows, targets, temperature, chunk, support=support)
        plainly = module(hidden)
        module.query = replace(module.query, squares=True)
        *outputs, squares = module(hidden)
        logits = (hidden[0, rows] @ module.weight.t() / temperature).masked_fill(excluded, -torch.inf)
        torch.testing.assert_close(squares, logits.softmax(-1).square().sum(-1), atol=1e-6, rtol=1e-5)
        assert not squares.requires_grad
        assert all(torch.equal(own, same) for own, same in zip(outputs, plainly, strict=True))
        both = [gradients(values[:1], module, hidden, [torch.ones(7)]) for values in (outputs, plainly)]
        assert all(torch.equal(own, same) for own, same in zip(*both, strict=True))


def test_a_support_holds_for_kept_logits_and_for_those_made_again():
    module = make_head(torch.bfloat16)
    hidden = torch.randn(1, TOKENS, HIDDEN).bfloat16().requires_grad_()
    rows, targets = torch.arange(7), torch.randint(VOCABULARY, (7,))
    support, excluded = make_support(targets)
    found = []
    for room in (0, 2**20):
        module.query = HeadQuery(rows, targets, 0.9, 4, support=support, kept_bytes=room)
        found.append(gradients(module(hidden)[:1], module, hidden, [torch.ones(7)]))
    for first, second in zip(*found, strict=True):
        assert torch.equal(first, second)
    never = excluded[[row for row, length in enumerate(LENGTHS) if length != 1]].all(0)
    assert not found[0][1][never].any()


def test_a_support_holds_for_float32_logits_of_a_bfloat16_head():
    torch.manual_seed(0)
    config = ResponseHead.Config(in_features=HIDDEN, out_features=VOCABULARY, wide=True)
    module = ResponseHead(config).to(torch.bfloat16)
    hidden = torch.randn(1, TOKENS, HIDDEN).bfloat16().requires_grad_()
    rows, targets = torch.arange(7), torch.randint(VOCABULARY, (7,))
    support, excluded = make_support(targets)
    module.query = HeadQuery(rows, targets, 0.7, 3, support=support)
    log_probs, _ = module(hidden)
    leaves = [tensor.detach().float().requires_grad_() for tensor in (hidden, module.weight)]
    logits = (leaves[0][0, rows] @ leaves[1].t() / 0.7).masked_fill(excluded, -torch.inf)
    expected = logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]
    torch.testing.assert_close(log_probs, expected, atol=1e-5, rtol=1e-5)
    got = torch.autograd.grad(log_probs.sum(), (hidden, module.weight))
    for value, reference in zip(got, torch.autograd.grad(expected.sum(), leaves), strict=True):
        torch.testing.assert_close(value.float(), reference, atol=1e-5, rtol=2.0**-7)


def test_no_response_tokens():
    module = make_head(torch.float32)
    hidden = torch.randn(1, TOKENS, HIDDEN, requires_grad=True)
    nothing = torch.zeros(0, dtype=torch.int64)
    module.query = HeadQuery(nothing, nothing, 1.0, 4)
    log_probs, entropy = module(hidden)
    assert log_probs.shape == entropy.shape == (0,)
    assert all(not gradient.any() for gradient in gradients((log_probs,), module, hidden, [nothing]))
