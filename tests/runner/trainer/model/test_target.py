"""Layers that round as SGLang's `rl_on_policy_target`: where they round, and their gradients."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlrun.models.computation.rope_tables import rope_tables
from rlrun.models.config_json import read_architecture
from rlrun.runner.trainer.model import target
from rlrun.runner.trainer.model.build_decoder import build_model
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.model.layers import PackedAttention
from rlrun.runner.trainer.model.rope import RopeTable
from rlrun.runner.trainer.model.target import (
    QueryKeyNorm,
    StreamNorm,
    TargetRoPE,
    rotation,
    target_log_softmax,
)
from rlrun.runner.trainer.ops.softmax import log_softmax
from rlrun.specs.sections.trainer import ParallelSpec
from tests.tiny_models import make_tiny_model

CPU = torch.device("cpu")


def norm_of(kind: type[StreamNorm | QueryKeyNorm], dtype: torch.dtype) -> StreamNorm | QueryKeyNorm:
    norm = kind(kind.Config(normalized_shape=48, eps=1e-6)).to(dtype)
    torch.nn.init.normal_(norm.weight, 1.0)
    return norm


def plain_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def gradients(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    output = function(*leaves)
    return torch.autograd.grad(output, leaves, torch.linspace(-1, 1, output.numel()).view_as(output))


@pytest.mark.parametrize("kind", [StreamNorm, QueryKeyNorm])
def test_a_norms_gradients_are_those_of_its_formula(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "bfloat16", lambda self: self)
    norm, x = norm_of(kind, torch.float32), torch.randn(5, 3, 48)
    ours = gradients(
        lambda x, weight: torch.func.functional_call(norm, {"weight": weight}, x), x, norm.weight
    )
    for own, plain in zip(ours, gradients(plain_norm, x, norm.weight), strict=True):
        torch.testing.assert_close(own, plain, atol=1e-5, rtol=1e-5)


def test_norms_round_where_the_server_does() -> None:
    stream, heads = norm_of(StreamNorm, torch.bfloat16), norm_of(QueryKeyNorm, torch.bfloat16)
    x = torch.randn(7, 48)
    ones = torch.ones(48)
    assert torch.equal(stream(x), (stream.weight.float() * plain_norm(x, ones)).bfloat16())
    narrow = x.bfloat16()
    rounded_first = plain_norm(narrow.float(), ones).bfloat16()
    assert heads(narrow).dtype == torch.float32
    assert torch.equal(heads(narrow), heads.weight.float() * rounded_first)


def test_rotation_turns_as_the_formula_and_back() -> None:
    x, angles = torch.randn(6, 4, 16), torch.randn(6, 8)
    turned = rotation(x, angles.cos(), angles.sin())
    pairs = torch.complex(x[..., :8], x[..., 8:]) * torch.polar(torch.ones(6, 1, 8), angles[:, None])
    torch.testing.assert_close(turned, torch.cat((pairs.real, pairs.imag), -1))
    (own,) = gradients(lambda x: target._Rotation.apply(x, angles.cos(), angles.sin()), x)
    (plain,) = gradients(lambda x: rotation(x, angles.cos(), angles.sin()), x)
    torch.testing.assert_close(own, plain)


def test_queries_are_rotated_in_float32_and_rounded_once() -> None:
    rope = TargetRoPE(TargetRoPE.Config(dim=16, max_seq_len=64))
    query, key, table = (
        torch.randn(1, 6, 4, 16),
        torch.randn(1, 6, 2, 16),
        torch.randn(6, 2, 8).repeat(1, 1, 2),
    )
    turned, _ = rope(query, key, table)
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned[0], rotation(query[0], table[:, 0, :8], table[:, 1, :8]).bfloat16())


def test_log_probs_are_rounded_and_their_gradients_are_not() -> None:
    logits, targets = torch.randn(9, 50).mul(4).bfloat16(), torch.arange(9)
    log_probs, log_sums, entropies, _ = target_log_softmax(logits, targets, 0.7)
    scaled = (logits.float() / torch.tensor(0.7)).bfloat16()
    assert torch.equal(log_probs, scaled.log_softmax(-1)[range(9), targets].float())
    exact = logits.float() / 0.7
    torch.testing.assert_close(log_sums, exact.logsumexp(-1))
    torch.testing.assert_close(entropies, torch.distributions.Categorical(logits=exact).entropy())
    assert not torch.equal(log_probs, log_softmax(logits, targets, 0.7)[0])


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_has_the_targets_layers_only_if_asked(tied: bool, tmp_path: Path) -> None:
    model = read_architecture(make_tiny_model(tmp_path, tied=tied))

    def kinds(as_target: bool) -> set[str]:
        options = DecoderOptions(
            parallel=ParallelSpec(), dtype=torch.bfloat16, device=CPU, as_target=as_target
        )
        (decoder,) = build_model(model, None, options)
        splits = {module._splits for module in decoder.modules() if isinstance(module, PackedAttention)}
        assert splits == {1 if as_target else None}
        return {type(module).__name__ for module in decoder.modules()}

    replaced = {"Embedding", "Norm", "SwiGLU", "TableRoPE"}
    assert replaced <= kinds(as_target=False)
    assert kinds(as_target=True).isdisjoint(replaced)
    assert {"StreamNorm", "QueryKeyNorm", "TargetEmbedding", "TargetRoPE", "TargetSwiGLU"} <= kinds(True)


def test_angles_computed_on_the_device_are_those_of_its_own_cosine(tmp_path: Path) -> None:
    model = read_architecture(make_tiny_model(tmp_path))
    on_device = rope_tables(model.rope, model.rotated_dim, 8, torch.device("meta"))
    assert {table.device.type for table in on_device} == {"meta"}
    positions = torch.arange(8)
    ours = RopeTable(model, CPU, on_device=True).rows(positions, 8)
    assert torch.equal(ours, RopeTable(model, CPU).rows(positions, 8))
