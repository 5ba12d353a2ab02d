"""Products in low precision against torchao's own reference, and which modules a decoder has."""

import copy

import pytest
import torch
from torch.nn.functional import linear, pad

pytest.importorskip("torchao", reason="pip install 'rlrun[low-precision]'")

from rlrun.converters.tensors.int4_groups import int4_scales
from rlrun.models.config_json import read_architecture
from rlrun.models.low_precision import LowPrecision
from rlrun.runner.trainer.model.build_decoder import build_model
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.model.low_precision import converted_config
from rlrun.runner.trainer.model.low_precision.blockwise import blockwise_product, rounded
from rlrun.runner.trainer.model.low_precision.converted_config import check_gpu, check_torchao
from rlrun.runner.trainer.model.low_precision.converted_experts import low_precision_product
from rlrun.runner.trainer.model.low_precision.int4_qat import int4_product
from rlrun.runner.weights.form import Form
from rlrun.specs.sections.trainer import ParallelSpec
from tests.tiny_models import make_tiny_model

# isort: split
from torchao.float8 import Float8LinearConfig
from torchao.float8.float8_linear import Float8Linear
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import MXTensor

CPU = torch.device("cpu")
ROWWISE, BLOCKWISE, MXFP8 = LowPrecision("float8"), LowPrecision("float8", "blockwise"), LowPrecision("mxfp8")
WIDE, INT4 = LowPrecision("float8", "rowwise_with_gw_hp"), LowPrecision("int4_qat")
ROUNDING = 2**-8
"""Relative rounding of a result to bfloat16."""


def operands(tokens=256, inputs=256, outputs=128):
    """Input, matrix and gradient; the input's rows and the matrix's blocks have different sizes."""
    generator = torch.Generator().manual_seed(0)
    draw = [torch.randn(shape, generator=generator) for shape in ((tokens, inputs), (outputs, inputs))]
    draw[0] *= torch.logspace(-2, 2, tokens)[:, None]
    draw[1][:, inputs // 2 :] *= 30
    gradient = torch.randn(tokens, outputs, generator=generator)
    return [tensor.bfloat16() for tensor in (*draw, gradient)]


def results(product, input, weight, gradient):
    """The output and both gradients of a product."""
    input, weight = input.clone().requires_grad_(), weight.clone().requires_grad_()
    output = product(input, weight)
    output.backward(gradient)
    return output.detach(), input.grad, weight.grad


def distance(ours, reference):
    return float((ours.float() - reference.float()).norm() / reference.float().norm())


def blockwise_reference(input, weight, gradient):
    """The three products with torchao's reference of each rounding, in float32."""
    kernels = pytest.importorskip("torchao.prototype.blockwise_fp8_training.kernels")

    def by_rows(matrix):
        values, scale = kernels.torch_blockwise_scale_act_quant_lhs(matrix.contiguous())
        return values.float() * scale.repeat_interleave(128, 1)

    def by_columns(matrix):
        values, scale = kernels.torch_blockwise_scale_act_quant_rhs(matrix.contiguous())
        return values.float() * scale.repeat_interleave(128, 0)

    def by_blocks(matrix):
        values, scale = kernels.torch_blockwise_scale_weight_quant(matrix.contiguous())
        return values.float() * scale.repeat_interleave(128, 0).repeat_interleave(128, 1)

    return (
        by_rows(input) @ by_blocks(weight).t(),
        by_rows(gradient) @ by_blocks(weight),
        by_rows(gradient.t()) @ by_columns(input),
    )


def rowwise_reference(recipe):
    """torchao's emulation of a recipe, which multiplies what it has rounded in bfloat16."""

    def products(input, weight, gradient):
        config = copy.copy(Float8LinearConfig.from_recipe_name(recipe))
        object.__setattr__(config, "emulate", True)
        layer = Float8Linear(weight.shape[1], weight.shape[0], bias=False, config=config)
        layer.weight.data, rows = weight.clone(), input.clone().requires_grad_()
        output = layer(rows)
        output.backward(gradient)
        return output.detach(), rows.grad, layer.weight.grad

    return products


def mxfp8_reference(input, weight, gradient):
    """The three products of matrices that torchao has rounded to MXFP8, in float32."""

    def by_rows(matrix):
        rounded = MXTensor.to_mx(matrix.contiguous(), torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
        return rounded.dequantize(torch.float32)

    return (
        by_rows(input) @ by_rows(weight).t(),
        by_rows(gradient) @ by_rows(weight.t()).t(),
        by_rows(gradient.t()) @ by_rows(input.t()).t(),
    )


@pytest.mark.parametrize(
    ("precision", "reference", "error"),
    [
        (ROWWISE, rowwise_reference("rowwise"), 0.04),
        (BLOCKWISE, blockwise_reference, 0.04),
        (MXFP8, mxfp8_reference, 0.04),
    ],
    ids=["float8 rowwise", "float8 blockwise", "mxfp8"],
)
def test_products_are_torchao_s(precision, reference, error):
    case = operands()
    ours = results(lambda rows, matrix: low_precision_product(rows, matrix, precision), *case)
    exact = results(lambda rows, matrix: rows @ matrix.t(), *(tensor.float() for tensor in case))
    for mine, theirs, plain in zip(ours, reference(*case), exact, strict=True):
        assert distance(mine, theirs) < ROUNDING
        assert ROUNDING < distance(mine, plain) < error


def test_int4_products_are_torchao_s_fake_quantisation():
    """Bit for bit, for the scales of slime's formula: torchao's own are for numbers from -8 to 7."""
    from torchao.quantization.quant_primitives import dequantize_affine, quantize_affine

    class StraightThrough(torch.autograd.Function):
        @staticmethod
        def forward(ctx, matrix):
            scales, block = int4_scales(matrix, 32), (1, 32)
            zeros = torch.zeros_like(scales, dtype=torch.int32)
            numbers = quantize_affine(matrix.float(), block, scales.float(), zeros, torch.int8, -7, 7)
            return dequantize_affine(
                numbers, block, scales, zeros, torch.int8, -7, 7, output_dtype=torch.bfloat16
            )

        @staticmethod
        def backward(ctx, grad):
            return grad

    case = operands()
    ours = results(lambda rows, matrix: int4_product(rows, matrix, 32), *case)
    theirs = results(lambda rows, matrix: linear(rows, StraightThrough.apply(matrix)), *case)
    exact = results(linear, *case)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
    assert torch.equal(ours[2], exact[2])
    assert 0.04 < distance(ours[0], exact[0]) < 0.2


def test_gradients_of_matrices_can_keep_bfloat16():
    from rlrun.runner.trainer.compat.low_precision import float8_product

    case = operands()
    ours = results(lambda rows, matrix: float8_product(rows, matrix, WIDE.recipe), *case)
    theirs = rowwise_reference(WIDE.recipe)(*case)
    exact = results(lambda rows, matrix: rows @ matrix.t(), *(tensor.float() for tensor in case))
    assert all(distance(mine, other) < ROUNDING for mine, other in zip(ours, theirs, strict=True))
    assert distance(ours[2], exact[2]) < ROUNDING < distance(ours[1], exact[1])


@pytest.mark.parametrize("precision", [ROWWISE, BLOCKWISE, MXFP8], ids=str)
def test_an_expert_may_have_any_number_of_tokens(precision):
    """Rows of zeros that complete a block change nothing."""
    input, weight, gradient = operands(tokens=70)
    ours = results(
        lambda rows, matrix: low_precision_product(rows, matrix, precision), input, weight, gradient
    )
    more = [pad(tensor, (0, 0, 0, 58)) for tensor in (input, gradient)]
    full = results(
        lambda rows, matrix: low_precision_product(rows, matrix, precision), more[0], weight, more[1]
    )
    assert torch.equal(ours[0], full[0][:70])
    assert torch.equal(ours[1], full[1][:70])
    assert distance(ours[2], full[2]) < ROUNDING


def test_matrices_are_rounded_as_fp8_engines_get_them():
    _, weight, _ = operands()
    weight[:128, :128] = 0  # a block whose largest number is 0
    pieces = dict(Form(torch.bfloat16, ()).pieces("model.layers.0.mlp.up_proj.weight", weight))
    values, scales = pieces.values()
    sent = values.float() * scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    assert torch.equal(rounded(weight, 128, 128), sent)


def test_a_frozen_matrix_gets_no_gradient():
    input, weight, gradient = operands()
    input.requires_grad_()
    blockwise_product(input, weight).backward(gradient)
    assert input.grad is not None and weight.grad is None


SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_hidden_layers": 1}
ATTENTION = {
    f"layers.0.attention.{name}" for name in ("qkv_linear.wq", "qkv_linear.wk", "qkv_linear.wv", "wo")
}
DENSE = {f"layers.0.feed_forward.{name}" for name in ("w1", "w2", "w3")}
EXPERTS = {"layers.0.moe.routed_experts.inner_experts"}
LATENT = {f"layers.0.attention.{name}" for name in ("wq_a", "wq_b", "wkv_a", "wkv_b", "wo")}
SHARED = {f"layers.0.moe.shared_experts.{name}" for name in ("w1", "w2", "w3")}
FAMILIES = {
    "llama": ATTENTION | DENSE,
    "qwen2": ATTENTION | DENSE,
    "qwen3": ATTENTION | DENSE,
    "qwen3_moe": ATTENTION | EXPERTS,
    "deepseek_v3": LATENT | SHARED | EXPERTS,
    "gpt_oss": (ATTENTION | EXPERTS) - {"layers.0.attention.wo"},
}
DEEPSEEK = {"q_lora_rank": 32, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 32}
DEEPSEEK |= {"v_head_dim": 16, "first_k_dense_replace": 0}
CONVERTED = ("Float8Linear", "_EmulatedMXFP8Linear", "BlockwiseMatrix", "Converted")


INT4_FAMILIES = FAMILIES | {"qwen3_moe": EXPERTS, "deepseek_v3": EXPERTS}


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"gpt_oss"}))
def test_rounded_modules_of_each_family(family, tmp_path):
    more = DEEPSEEK if family == "deepseek_v3" else {}
    model = read_architecture(make_tiny_model(tmp_path / "model", family, **SIZES | more))
    decoder, *_ = build_model(
        model, None, DecoderOptions(parallel=ParallelSpec(), dtype=torch.bfloat16, device=CPU, precision=INT4)
    )
    rounded_modules = {
        name for name, module in decoder.named_modules() if type(module).__name__.startswith("Int4")
    }
    assert rounded_modules == INT4_FAMILIES[family]


@pytest.mark.parametrize("precision", [ROWWISE, MXFP8], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_converted_modules_of_each_family(family, precision, tmp_path):
    more = DEEPSEEK if family == "deepseek_v3" else {}
    model = read_architecture(make_tiny_model(tmp_path / "model", family, **SIZES | more))
    decoder, *_ = build_model(
        model,
        None,
        DecoderOptions(parallel=ParallelSpec(), dtype=torch.bfloat16, device=CPU, precision=precision),
    )
    converted = {
        name for name, module in decoder.named_modules() if type(module).__name__.startswith(CONVERTED)
    }
    assert converted == FAMILIES[family]


@pytest.mark.parametrize(
    ("capability", "precision", "message"),
    [
        ((8, 0), ROWWISE, r"\(rowwise\) needs a GPU of compute capability 8\.9, and this GPU has 8\.0"),
        (
            (8, 9),
            BLOCKWISE,
            r"\(blockwise\) needs a GPU of compute capability 9\.0, and this GPU has 8\.9",
        ),
        ((9, 0), MXFP8, r"mxfp8 needs a GPU of compute capability 10\.0"),
    ],
)
def test_a_gpu_without_the_products(capability, precision, message, monkeypatch):
    monkeypatch.setattr(converted_config, "ON_CPU", False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "this GPU")
    with pytest.raises(ValueError, match=message):
        check_gpu(precision)


def test_a_missing_package(monkeypatch):
    monkeypatch.setattr(converted_config, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs torchao: pip install 'rlrun\[low-precision\]'"):
        check_torchao()


def test_nvfp4_matrices_have_their_seeds_and_signs(tmp_path, monkeypatch):
    """The products need a GPU; everything before them does not."""
    import torchtitan.components.quantization.nvfp4 as titan

    monkeypatch.setattr(titan, "has_cuda_capability", lambda *capability: True)
    model = read_architecture(make_tiny_model(tmp_path / "model", "qwen3_moe", **SIZES))
    nvfp4 = LowPrecision("nvfp4")
    decoder, *_ = build_model(
        model,
        None,
        DecoderOptions(parallel=ParallelSpec(), dtype=torch.bfloat16, device=CPU, precision=nvfp4),
    )
    matrices = [module for module in decoder.modules() if isinstance(module, titan.NVFP4Linear)]
    assert len(matrices) == 2  # q_proj and o_proj: k_proj and v_proj have 64 rows
    for matrix in matrices:
        assert matrix._sr_seed.shape == (1,) and len(matrix.rht_sign_vector) == 16
