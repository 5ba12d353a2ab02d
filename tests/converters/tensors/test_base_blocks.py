"""Frozen matrices in 4 and 8 bits: torchao's codes and values."""

import pytest
import torch
from torchao.quantization import NF4Tensor
from torchao.quantization.quant_primitives import (
    MappingType,
    choose_qparams_affine,
    dequantize_affine,
    quantize_affine,
)

from rlrun.converters.tensors.base_blocks import bytes_per_row, decode, encode


def matrix():
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(6, 256, generator=generator) * torch.logspace(-3, 1, 6)[:, None]
    values[2, 64:128] = 0
    return values


def test_nf4_has_torchaos_codes_with_exact_scales():
    values = matrix()
    reference = NF4Tensor.from_tensor(values, 64, 8)
    stored = encode(values, "nf4")
    assert stored.shape == (6, bytes_per_row("nf4", 256)) == (6, 4 * 36)
    blocks = stored.view(24, 36)
    assert torch.equal(blocks[:, :32].flatten(), reference.quantized_data)
    scales = values.view(24, 64).abs().amax(1)
    codes = torch.stack([blocks[:, :32] >> 4, blocks[:, :32] & 15], -1).flatten(1)
    expected = reference.nf4[codes.long()] * scales[:, None]
    assert torch.equal(decode(stored, "nf4"), expected.view(6, 256))


def test_int8_has_torchaos_values():
    values = matrix().view(-1, 64)
    limits = -127, 127
    scales, zeros = choose_qparams_affine(values, MappingType.SYMMETRIC, (1, 64), torch.int8, *limits)
    codes = quantize_affine(values, (1, 64), scales, zeros, torch.int8, *limits)
    expected = dequantize_affine(codes, (1, 64), scales, zeros, torch.int8, *limits)
    stored = encode(values.view(6, 256), "int8")
    assert stored.shape == (6, bytes_per_row("int8", 256)) == (6, 4 * 68)
    assert torch.equal(decode(stored, "int8"), expected.view(6, 256))


@pytest.mark.parametrize(("kind", "largest"), [("nf4", 0.16), ("int8", 0.004)])
def test_errors_are_a_part_of_the_largest_value_of_a_block(kind, largest):
    values = matrix()
    decoded = decode(encode(values, kind), kind)
    scales = values.view(6, 4, 64).abs().amax(2, keepdim=True)
    assert ((decoded - values).view(6, 4, 64).abs() <= largest * scales).all()
    assert not decoded[2, 64:128].any()


@pytest.mark.parametrize("kind", ["nf4", "int8"])
def test_parts_of_rows_and_columns_are_readable(kind):
    values = matrix()
    stored, whole = encode(values, kind), decode(encode(values, kind), kind)
    half = stored.shape[1] // 2
    assert torch.equal(decode(stored[2:4], kind), whole[2:4])
    assert torch.equal(decode(stored[:, half:].contiguous(), kind), whole[:, 128:])
    assert torch.equal(encode(values[2:4], kind), stored[2:4])
    assert decode(stored, kind, torch.bfloat16).equal(whole.bfloat16())
