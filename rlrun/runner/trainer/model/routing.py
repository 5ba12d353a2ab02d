"""Which experts tokens go to: counted, noted in one pass, taken over in another.

    old-log-prob pass ─▶ experts of every token ─┐
    engine's answer   ─▶ experts of every token ─┴─▶ TrainSequence ─▶ router: the same experts, weights anew

A router that chooses anew, after an update or in other arithmetic, has the ratio compare two networks:
arXiv:2507.18071 § 5.3 notes the choice in the trainer, arXiv:2510.11370 takes the engine's.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from rlrun.runner.trainer.compat.experts import TokenChoiceTopKRouter


@dataclass(frozen=True, slots=True)
class Routing:
    """What the routers of a micro-batch are told, and what they tell."""

    given: torch.Tensor | None = None
    """`[T', layers × K]` the experts to take; tokens with -1 choose for themselves. None: all do."""
    place: int = 0
    """Which part of the tokens a tensor-parallel rank's routers see, where each sees a part."""
    counted: torch.Tensor | None = None
    """`[T']` bool: the tokens that count as an expert's load; None: all."""
    seen: dict[int, torch.Tensor] = field(default_factory=dict)
    """`[tokens, K]` the experts taken, by layer: filled by routers where `note` says so."""
    note: bool = False

    def chosen(self, layer: int, own: torch.Tensor) -> torch.Tensor:
        """A layer's experts `[1, tokens, K]`, where its router's `own` choice is this."""
        if self.given is None:
            return own
        tokens, count = own.shape[1:]
        given = self._seen(self.given, tokens)[:, layer * count : (layer + 1) * count].long()
        return torch.where(given < 0, own, given[None])

    def load(self, experts: torch.Tensor, count: int) -> torch.Tensor:
        """`[count]` int64: how many of the tokens go to each expert, by their choices `[1, tokens, K]`."""
        chosen = experts.new_zeros(experts.shape[1], count, dtype=torch.bool).scatter_(1, experts[0], True)
        if self.counted is not None:
            chosen &= self._seen(self.counted, len(chosen))[:, None]
        return chosen.sum(0)

    def _seen(self, values: torch.Tensor, tokens: int) -> torch.Tensor:
        """What is told of all T' tokens, for those that a router sees."""
        first = 0 if tokens == len(values) else self.place * tokens
        return values[first : first + tokens]


class ReplayRouter(TokenChoiceTopKRouter):
    """A router that counts, and can be told which experts to take; their weights, and gradients, are its
    own.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(TokenChoiceTopKRouter.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.routing: Routing | None = None
        self.layer = -1
        self.load: torch.Tensor | None = None
        """`[experts]` int64 tokens that each was given since this was None."""

    def forward(
        self, x_BLD: torch.Tensor, expert_bias_E: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As torchtitan's: weights and experts `[1, tokens, K]`, and the scores of all experts."""
        weights, own, scores = super().forward(x_BLD, expert_bias_E)
        if self.routing is None:
            return weights, own, scores
        experts = self.routing.chosen(self.layer, own)
        load = self.routing.load(experts, self.num_experts)
        if self.load is None:
            self.load = torch.zeros_like(load)
        # in place: selective recomputation keeps results of other additions, and counts on their order
        self.load.add_(load)
        if self.routing.note:
            self.routing.seen[self.layer] = experts[0]
        if experts is own:
            return weights, own, scores
        weights = scores.gather(-1, experts)
        if self.route_norm:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return weights * self.route_scale, experts, scores


def connect_routers(layers: nn.ModuleDict) -> None:
    """Have every sparse layer hand the `routing` of the documents it gets to its router, also where it runs
    again in the backward pass, when pipelines have moved on to other micro-batches.
    """
    for name, block in layers.items():
        if block.moe_enabled:
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
    """`[T', layers × K]` int32 of a rank's T' tokens, by `shape`; -1 in layers that are dense, or on another
    stage.

    `tensor`: the ranks whose routers may see a part of the tokens each.
    """
    order = sorted(routing.seen)
    device = routing.seen[order[0]].device if order else torch.device("cpu")
    table = torch.full(shape, -1, dtype=torch.int32, device=device)
    if order:
        stack = torch.stack([routing.seen[layer] for layer in order], 1).to(torch.int32)
        if len(stack) < len(table):
            assert tensor is not None
            stack = gathered(stack, tensor)
        table[:, order] = stack
    return table.flatten(1)


def gathered(part: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """The parts of all ranks, one after the other."""
    parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, part.contiguous(), group)
    return torch.cat(parts)
