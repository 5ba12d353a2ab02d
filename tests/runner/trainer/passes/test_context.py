"""Parts of packs against whole ones: without process groups, the parts of all ranks side by side."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from rlrun.models.architecture import DeltaNet
from rlrun.models.families.qwen_next.trainer_layers import DeltaRule
from rlrun.runner.trainer.model.attention import AttentionSettings, packed_attention
from rlrun.runner.trainer.passes.context import WHOLE, ContextPart
from rlrun.runner.trainer.passes.packed_batch import make_pack
from tests.runner.trainer.trainer_cases import make_sequences

CPU = torch.device("cpu")
PARTS = [(2, True), (2, False), (4, True), (3, False)]


def parts_of(size, balanced):
    return [ContextPart(rank, size, balanced=balanced) for rank in range(size)]


def packs(size, balanced, count=5):
    """The whole pack, and each rank's part."""
    multiple = 2 * size
    sequences = make_sequences(count)
    whole = make_pack(sequences, multiple, CPU, part=WHOLE)
    return whole, [make_pack(sequences, multiple, CPU, part=part) for part in parts_of(size, balanced)]


def test_balanced_parts_are_an_early_and_a_late_piece():
    assert [part.pieces(16) for part in parts_of(2, True)] == [[(0, 4), (12, 16)], [(4, 8), (8, 12)]]
    assert [part.pieces(16) for part in parts_of(2, False)] == [[(0, 8)], [(8, 16)]]


@pytest.mark.parametrize(("size", "balanced"), PARTS)
def test_every_token_and_every_response_token_is_some_ranks(size, balanced):
    whole, parts = packs(size, balanced)
    order = np.argsort(
        np.concatenate([part.tokens(whole.tokens.shape[1]) for part in parts_of(size, balanced)])
    )
    assert torch.equal(torch.cat([part.tokens[0] for part in parts])[order], whole.tokens[0])
    assert torch.equal(torch.cat([part.positions for part in parts])[order], whole.positions)
    found = torch.cat([part.own_responses for part in parts])
    assert torch.equal(found.sort().values, torch.arange(len(whole.targets)))
    assert torch.equal(torch.cat([part.targets for part in parts])[found.argsort()], whole.targets)


@pytest.mark.parametrize("count", [5, 1])
@pytest.mark.parametrize(("size", "balanced"), PARTS)
def test_attention_of_the_parts_is_that_of_the_whole(size, balanced, count):
    torch.manual_seed(0)
    whole, parts = packs(size, balanced, count)
    total = whole.tokens.shape[1]
    query, key, value = (torch.randn(total, heads, 8, requires_grad=True) for heads in (4, 2, 2))
    gradient = torch.randn(total, 4, 8)
    expected = packed_attention(query, key, value, whole.documents, AttentionSettings(0.3))
    wanted = torch.autograd.grad(expected, (query, key, value), gradient)
    rows = [torch.from_numpy(part.tokens(total)) for part in parts_of(size, balanced)]
    gathered = torch.cat(rows)  # the order in which ranks' keys arrive
    outputs = [
        packed_attention(query[mine], key[gathered], value[gathered], part.documents, AttentionSettings(0.3))
        for mine, part in zip(rows, parts, strict=True)
    ]
    torch.testing.assert_close(torch.cat(outputs), expected[gathered])
    got = torch.autograd.grad(torch.cat(outputs), (query, key, value), gradient[gathered])
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("count", [5, 1])
@pytest.mark.parametrize(("size", "balanced"), PARTS)
def test_the_delta_rule_of_each_ranks_heads_is_that_of_the_whole(size, balanced, count):
    torch.manual_seed(0)
    shape = DeltaNet(frozenset(), 2 * size, 4 * size, 8, 6, 4, by_head=False)
    rule = DeltaRule.Config(shape=shape).build()
    whole, parts = packs(size, balanced, count)
    total, ranks = whole.tokens.shape[1], parts_of(size, balanced)
    taps = torch.randn(shape.channels, 4, requires_grad=True)
    inputs = [torch.randn(1, total, width, requires_grad=True) for width in (shape.channels, *[4 * size] * 2)]
    decay = -functional.softplus(inputs[1])
    expected = rule(inputs[0], taps, decay, inputs[2].sigmoid(), whole.documents)
    gradient = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, (taps, *inputs), gradient)
    gathered = torch.cat([torch.from_numpy(part.tokens(total)) for part in ranks])
    outputs = []
    for part in parts:
        document = part.documents
        decay = -functional.softplus(inputs[1])
        exchanged = [
            x[:, gathered].chunk(size, 2)[document.rank] for x in (inputs[0], decay, inputs[2].sigmoid())
        ]
        outputs.append(rule(exchanged[0], taps, *exchanged[1:], document))
    output = torch.cat(outputs, 2)
    torch.testing.assert_close(output, expected[:, gathered])
    got = torch.autograd.grad(output, (taps, *inputs), gradient[:, gathered])
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_a_pack_is_filled_up_with_short_documents():
    pack = make_pack(make_sequences(1), 8, CPU, size=300)
    assert pack.tokens.shape[1] == 304
    assert max(pack.documents.lengths[1:]) <= 64
    assert sum(pack.documents.lengths) == 304
    empty = make_pack([], 4, CPU)
    assert empty.tokens.shape[1] == 4
    assert len(empty.rows) == 0
