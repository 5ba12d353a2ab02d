"""Lays transformers' layers out over tensor- and expert-parallel ranks, by the plan of each family.

transformers ships a plan (`base_model_tp_plan`): the style of each matrix by its name. Hidden states are the
same on all tensor-parallel ranks between the layers:

    hidden states -> colwise: a slice of the outputs -> rowwise: a partial sum -> sum over the ranks

A parameter outside of the plan is the same on all ranks, and so is its gradient.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear

from rlrun.runner.trainer.compat.experts import AllToAllTokenDispatcher
from rlrun.runner.trainer.compat.layouts import Placement, place_expert_parameters, place_parameter
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.model.layers import Experts
from rlrun.runner.trainer.model.rank_functions import Gather, Split, Sum, SumGradients

STYLES: Mapping[str, tuple[Placement, Placement]] = {
    "colwise": ("rows", "rows"),
    "colwise_gather_output": ("rows", "rows"),
    "rowwise": ("columns", "same"),
    "rowwise_split_input": ("columns", "same"),
    "replicated_with_grad_allreduce": ("same, gradients added up", "same, gradients added up"),
}
"""How each style of a plan splits a module's weight and bias."""


def lay_out(decoder: Any, config: Any, dims: ParallelDims) -> None:
    """Splits the parameters of a decoder on meta, and makes its modules exchange what they need.

    Raises ValueError if the family has no plan for tensor parallelism, or one that is not supported.
    """
    tensor = dims.get_optional_mesh("tp")
    group = None if tensor is None else tensor.get_group("tp")
    styles = {} if group is None else _styles(decoder.model, config)
    for name, module in decoder.model.named_modules():
        if isinstance(module, _RoutedExperts):
            _lay_out_experts(module, dims, group)
        elif ".experts.inner_experts" not in name:
            weight, bias = STYLES[styles[name]] if name in styles else ("same", "same")
            if module is decoder.model.embed_tokens:
                weight = "rows"
            for key in list(module._parameters):
                place_parameter(module, key, dims, bias if key == "bias" else weight)
        if group is not None and name in styles:
            module.forward = _forward(styles[name], module, group)
    decoder.lm_head.parallelize(dims)
    place_parameter(decoder.lm_head, "weight", dims, "rows")
    if group is not None:
        head, log_probs = decoder.lm_head, decoder.lm_head.forward
        head.forward = lambda states: log_probs(SumGradients.apply(states, group))
        _split_vocabulary(decoder.model.embed_tokens, dims, group, tied=decoder.enable_weight_tying)


def _styles(model: nn.Module, config: Any) -> dict[str, str]:
    """Returns the style of each module in the plan of a family, by the module's name."""
    plan = getattr(config, "base_model_tp_plan", None)
    if not plan:
        raise ValueError(
            f"transformers has no plan of tensor parallelism for {config.model_type}: set "
            "trainer.parallel.tensor = 1"
        )
    styles = {}
    for name, module in model.named_modules():
        style = plan.get(".".join("*" if part.isdecimal() else part for part in name.split(".")))
        if style is None or isinstance(module, _RoutedExperts | nn.Embedding):
            continue  # laid out below, whatever the plan says
        if style not in STYLES:
            raise ValueError(
                f"transformers' plan of tensor parallelism for {config.model_type} has the style {style} for "
                f"{name}, which is not supported: set trainer.parallel.tensor = 1"
            )
        styles[name] = style
    return styles


def _forward(style: str, module: nn.Module, group: dist.ProcessGroup) -> Callable[..., torch.Tensor]:
    """Returns the forward pass of a module in one of the styles."""
    plain_forward = module.forward

    def colwise(x: torch.Tensor) -> torch.Tensor:
        return plain_forward(SumGradients.apply(x, group))

    def rowwise(x: torch.Tensor) -> torch.Tensor:
        total = Sum.apply(linear(x, module.weight), group)
        return total if module.bias is None else total + module.bias

    if style == "colwise":
        return colwise
    if style == "rowwise":
        return rowwise
    if style == "colwise_gather_output":
        return lambda x: Gather.apply(colwise(x), -1, group)
    if style == "rowwise_split_input":
        return lambda x: rowwise(Split.apply(x, -1, group))
    return plain_forward


class _RoutedExperts(nn.Module):
    """A layer's experts, with the interface of transformers' modules of that kind.

    transformers' router -> experts of each token -> exchange -> rlrun's experts -> exchange -> weighted sum

    So experts can be sharded over ranks, and checkpoints have a tensor for each of an expert's matrices.
    """

    def __init__(self, num_experts: int, hidden: int, intermediate: int) -> None:
        super().__init__()
        self.inner_experts = Experts.Config(
            dim=hidden, hidden_dim=intermediate, num_experts=num_experts, param_init={}
        ).build()
        # the number of experts per token is that of the tokens at hand
        self.token_dispatcher = AllToAllTokenDispatcher.Config(num_experts=num_experts, top_k=1).build()

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Returns the weighted sums `[T, D]` of the experts `[T, K]` of each token `[T, D]`."""
        dispatcher = self.token_dispatcher
        dispatcher.top_k = top_k_index.shape[1]
        chosen = top_k_index.flatten()
        counts = chosen.new_zeros(dispatcher.num_experts)  # bincount would wait for the GPU
        counts.scatter_add_(0, chosen, torch.ones_like(chosen))
        tokens, counts, way_back = dispatcher.dispatch(hidden_states, top_k_weights, top_k_index, counts)
        combined: torch.Tensor = dispatcher.combine(
            self.inner_experts(tokens, counts), way_back, hidden_states
        )
        return combined


def _lay_out_experts(experts: _RoutedExperts, dims: ParallelDims, group: dist.ProcessGroup | None) -> None:
    """Gives each rank whole experts, or without expert parallelism a slice of every expert."""
    place_expert_parameters(experts.inner_experts, dims)
    experts.token_dispatcher.wire_meshes(ep_mesh=dims.get_optional_mesh("ep"))
    if group is None:
        return
    plain_forward = experts.forward

    def by_tokens(states: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """Each tensor-parallel rank sends its part of the tokens to their experts."""
        parts = (Split.apply(x, 0, group) for x in (states, index, weights))
        return Gather.apply(plain_forward(*parts), 0, group)

    def by_width(states: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return Sum.apply(
            plain_forward(SumGradients.apply(states, group), index, SumGradients.apply(weights, group)), group
        )

    module: Any = experts
    module.forward = by_tokens if dims.ep > 1 else by_width


def _split_vocabulary(
    embedding: nn.Embedding, dims: ParallelDims, group: dist.ProcessGroup, *, tied: bool
) -> None:
    """Gives each rank the rows of its part of the vocabulary, as the head has them."""
    plain_forward, rank, size = embedding.forward, dist.get_rank(group), dist.get_world_size(group)
    rows = embedding.num_embeddings // size
    first = rank * rows
    if embedding.padding_idx is not None:  # torch leaves this row without gradient
        row = embedding.padding_idx - first
        embedding.padding_idx = row if 0 <= row < rows else None

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        row = tokens - first
        states = plain_forward(row.clamp(0, rows - 1))
        is_own = (row >= 0) & (row < rows)
        return Sum.apply(states * is_own[..., None].to(states.dtype), group)

    module: Any = embedding
    module.forward = forward


def replace_experts(model: nn.Module, dtype: torch.dtype) -> None:
    """Replaces the experts of every sparse layer.

    Raises ValueError for experts that are not SwiGLUs whose gate and up are one stacked matrix.
    """
    for layer in model.layers:
        for name, block in list(layer.named_modules()):
            experts = getattr(block, "experts", None)
            if not isinstance(experts, nn.Module):
                continue
            block.experts = _like(experts, f"{name}.experts").to(dtype)
            # the names by which torchtitan's data parallelism finds a layer's experts
            layer.__dict__["moe_enabled"] = True
            layer.__dict__["moe"] = SimpleNamespace(routed_experts=block.experts)


def _like(experts: nn.Module, name: str) -> _RoutedExperts:
    parameters = dict(experts.named_parameters())
    is_swiglu = (
        isinstance(getattr(experts, "act_fn", None), nn.SiLU) or "SiLU" in type(experts.act_fn).__name__
    )
    if parameters.keys() != {"gate_up_proj", "down_proj"} or not is_swiglu:
        raise ValueError(f"{name} is not a stack of SwiGLUs: such experts cannot be trained here")
    num_experts, hidden, intermediate = parameters["down_proj"].shape
    return _RoutedExperts(num_experts, hidden, intermediate)
