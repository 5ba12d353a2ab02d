"""Records which experts tokens are routed to in one pass, and replays the choice in another.

    old-log-prob pass ─▶ experts of every token ─┐
    engine's answer   ─▶ experts of every token ─┴─▶ TrainSequence ─▶ router: same experts, new weights

After an update, or in different arithmetic, a router may choose other experts, and the policy ratio would
then compare two different networks. arXiv:2507.18071 § 5.3 replays the trainer's choice, arXiv:2510.11370 the
engine's.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rlrun.runner.trainer.compat.experts import TokenChoiceTopKRouter


@dataclass(frozen=True, slots=True)
class Routing:
    """What the routers of a micro-batch replay, and what they record."""

    given: torch.Tensor | None = None
    """`[T', layers × K]` experts to use; the router chooses for tokens with -1. None: it chooses for all."""
    place: int = 0
    """Index of the part of the tokens that this tensor-parallel rank's routers see, if each sees a part."""
    counted: torch.Tensor | None = None
    """`[T']` bool or int64: how often each token counts towards an expert's load; None: each once."""
    seen: dict[int, torch.Tensor] = field(default_factory=dict)
    """`[tokens, K]` experts used, by layer; filled in by the routers if `note` is set."""
    note: bool = False

    def chosen(self, layer: int, own: torch.Tensor) -> torch.Tensor:
        """Returns the experts `[1, tokens, K]` that a layer uses, given its router's `own` choice."""
        if self.given is None:
            return own
        tokens, count = own.shape[1:]
        given = self._seen(self.given, tokens)[:, layer * count : (layer + 1) * count].long()
        return torch.where(given < 0, own, given[None])

    def load(self, experts: torch.Tensor, count: int) -> torch.Tensor:
        """Returns `[count]` int64: how many tokens go to each expert, given their choices `[1, tokens,
        K]`.
        """
        chosen = experts.new_zeros(experts.shape[1], count, dtype=torch.bool).scatter_(1, experts[0], True)
        if self.counted is not None:
            chosen = chosen * self._seen(self.counted, len(chosen))[:, None]
        return chosen.sum(0)

    def _seen(self, values: torch.Tensor, tokens: int) -> torch.Tensor:
        """Returns the values of the tokens that a router sees, out of those of all T' tokens."""
        first = 0 if tokens == len(values) else self.place * tokens
        return values[first : first + tokens]


class ReplayRouter(TokenChoiceTopKRouter):
    """A router that counts tokens, and can replay a choice of experts.

    The experts' weights, and the gradients through them, are always the router's own.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(TokenChoiceTopKRouter.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.routing: Routing | None = None
        self.layer = -1
        self.load: torch.Tensor | None = None
        """`[experts]` int64 number of tokens that each expert got since this was None."""

    def forward(
        self, x_BLD: torch.Tensor, expert_bias_E: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns weights and experts `[1, tokens, K]`, and the scores of all experts, as torchtitan's
        does.
        """
        weights, own, scores = super().forward(x_BLD, expert_bias_E)
        if self.routing is None:
            return weights, own, scores
        experts = self.routing.chosen(self.layer, own)
        load = self.routing.load(experts, self.num_experts)
        if self.load is None:
            self.load = torch.zeros_like(load)
        # In place: selective recomputation saves the results of other additions and relies on their order.
        self.load.add_(load)
        if self.routing.note:
            self.routing.seen[self.layer] = experts[0]
        if experts is own:
            return weights, own, scores
        weights = scores.gather(-1, experts)
        if self.route_norm:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.route_scale, experts, scores


def connect_routers(layers: nn.ModuleDict, count: int) -> None:
    """Makes every sparse layer of the first `count` pass the `routing` of its documents to its router before
    it runs. The router of an MTP layer, which comes behind them, chooses by itself.

    This also holds when a layer runs again in the backward pass, at which point a pipeline has moved on to
    other micro-batches.
    """
    for name, block in layers.items():
        if block.moe_enabled and int(name) < count:
            block.moe.router.layer = int(name)
            inner = getattr(block, "_checkpoint_wrapped_module", block)
            inner.register_forward_pre_hook(_hand_over)


@torch.compiler.disable
def _hand_over(block: Any, arguments: tuple[Any, ...]) -> None:
    _, documents, *_ = arguments
    block.moe.router.routing = documents.routing


def noted_experts(
    routing: Routing, shape: tuple[int, int, int], tensor: dist.ProcessGroup | None
) -> torch.Tensor:
    """Returns the recorded experts of a rank's tokens, `[T', layers × K]` int32, given `shape` (T', layers,
    K).

    Dense layers, and those of other pipeline stages, have -1. `tensor`: the tensor-parallel ranks, whose
    routers may each see only a part of the tokens.
    """
    tokens, layers, count = shape
    order = sorted(routing.seen)
    if not order:
        return torch.full((tokens, layers * count), -1, dtype=torch.int32)
    stack = torch.stack([routing.seen[layer] for layer in order], 1).to(torch.int32)
    if len(stack) < tokens:
        assert tensor is not None
        stack = gathered(stack, tensor)
    experts = dict(zip(order, stack.unbind(1), strict=True))
    unseen = torch.full_like(experts[order[0]], -1)
    # Assigning to a list of columns would copy the list to the device, and wait for it.
    return torch.cat([experts.get(layer, unseen) for layer in range(layers)], 1)


def gathered(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Returns the parts of all ranks, concatenated in order."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part.contiguous(), group)
    return torch.cat(parts)
