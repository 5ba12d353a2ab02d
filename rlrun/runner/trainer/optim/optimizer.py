"""AdamW, in float32, 8 bits or without state, SGD, and Muon with AdamW behind one interface.

The state is listed by parameter name, for checkpoints.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from rlrun.runner.trainer.optim.muon import GatheringMuon, is_shared_unequally
from rlrun.runner.trainer.optim.offload import host_zeros, step_in_turns
from rlrun.runner.trainer.optim.stateless import StatelessAdamW
from rlrun.runner.trainer.transfers import wait
from rlrun.specs.sections.optimizer import OptimizerSpec

NOT_HIDDEN = ("tok_embeddings.", "model.embed_tokens.", "lm_head.", "visual.")
"""Matrices that do not map hidden states to hidden states; AdamW trains them where Muon trains the rest."""
_COUNT = "step"
"""The entry of Adam's state that counts the steps of its bias correction."""


class Optimizer:
    """The optimizer that a spec asks for, over parameters by name."""

    def __init__(
        self, spec: OptimizerSpec, parameters: Mapping[str, nn.Parameter], *, on_host: bool = False
    ) -> None:
        """Weight decay applies to matrices only, not to norms and biases. `on_host`: state is kept in host
        memory and moves to the parameters' device for the step.
        """
        self._spec, self._on_host = spec, on_host
        self._parameters = dict(parameters)
        matrices = {name: weight for name, weight in parameters.items() if _is_matrix(name, weight)}
        vectors = [weight for name, weight in parameters.items() if name not in matrices]
        hidden = {name: weight for name, weight in matrices.items() if _is_hidden(name, weight)}
        self._decayed = list(matrices.values())
        match spec.optimizer:
            case "adamw" | "adamw_8bit" | "adamw_stateless":
                optimizers: list[torch.optim.Optimizer] = [_adamw(spec, self._decayed, vectors)]
            case "sgd":
                group = {"params": list(parameters.values())}
                optimizers = [torch.optim.SGD([group], lr=spec.lr, momentum=spec.momentum)]
            case "muon":
                not_hidden = [weight for name, weight in matrices.items() if name not in hidden]
                optimizers = [*_muon(spec, list(hidden.values())), _adamw(spec, not_hidden, vectors)]
        self.optimizers = optimizers
        """torch's: two with Muon, one otherwise."""

    def reset(self) -> None:
        """Forgets all state, as before the first step."""
        for optimizer in self.optimizers:
            optimizer.state.clear()

    def zero_grad(self) -> None:
        """Drops all gradients."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Takes one step at this learning rate."""
        if (
            self._spec.optimizer == "sgd" and self._decayed
        ):  # torch adds its own weight decay to the gradient, so to the momentum
            torch._foreach_mul_(self._decayed, 1.0 - rate * self._spec.weight_decay)
        if self._on_host or self._spec.optimizer == "adamw_8bit":
            self._state()  # creates missing state: torch would create it on the device, and in float32
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
            if self._on_host:
                step_in_turns(optimizer)
            else:
                optimizer.step()

    def tensors(self) -> dict[str, torch.Tensor]:
        """Returns the state by `<kind>.<parameter>`, complete also in host memory; creates zeros where there
        is none yet.
        """
        for device in {parameter.device for parameter in self._parameters.values()}:
            wait(device)
        return self._state()

    def _state(self) -> dict[str, torch.Tensor]:
        tensors: dict[str, torch.Tensor] = {}
        optimizers = self._optimizer_of()
        for name, parameter in self._parameters.items():
            optimizer = optimizers[parameter]
            state = optimizer.state[parameter]
            if not state:
                state |= self._zero_state(optimizer, parameter)
            tensors |= {f"{kind}.{name}": tensor for kind, tensor in state.items() if kind != _COUNT}
        return tensors

    @property
    def updates(self) -> torch.Tensor:
        """Steps that Adam's bias correction counts, a scalar tensor; 0 before the first, and without Adam."""
        states = [state for optimizer in self.optimizers for state in optimizer.state.values()]
        counts = [state[_COUNT] for state in states if _COUNT in state]
        return counts[0].detach().cpu().clone() if counts else torch.tensor(0.0)

    @updates.setter
    def updates(self, count: torch.Tensor) -> None:
        for optimizer in self.optimizers:
            for state in optimizer.state.values():
                if _COUNT in state:
                    state[_COUNT].copy_(count)

    @property
    def held(self) -> list[torch.Tensor]:
        """The tensors of the state that exists."""
        states = [state for optimizer in self.optimizers for state in optimizer.state.values()]
        return [tensor for state in states for tensor in state.values()]

    def _zero_state(
        self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter
    ) -> dict[str, torch.Tensor]:
        """Returns the state of a parameter before its first step, by kind."""
        if isinstance(optimizer, StatelessAdamW):
            return {}
        if isinstance(optimizer, torch.optim.SGD | torch.optim.Muon | GatheringMuon):
            return {"momentum_buffer": self._zeros(parameter)}
        if isinstance(optimizer, torch.optim.AdamW):
            moments = {moment: self._zeros(parameter) for moment in ("exp_avg", "exp_avg_sq")}
        else:
            from rlrun.runner.trainer.optim.eight_bit import empty_moments

            moments = empty_moments(parameter, on_host=self._on_host)
        return moments | {_COUNT: torch.zeros((), dtype=torch.float32, device=parameter.device)}

    def _zeros(self, parameter: nn.Parameter) -> torch.Tensor:
        return host_zeros(parameter) if self._on_host else torch.zeros_like(parameter, requires_grad=False)

    def _optimizer_of(self) -> dict[nn.Parameter, torch.optim.Optimizer]:
        return {
            parameter: optimizer
            for optimizer in self.optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Returns whether a parameter decays. Biases of a layer's experts have two dimensions, but do not."""
    return parameter.ndim > 1 and "bias" not in name.rpartition(".")[2]


def _is_hidden(name: str, parameter: nn.Parameter) -> bool:
    """Returns whether a parameter is a matrix of the layers, or a stack of experts' matrices; a convolution's
    filters have three dimensions too.
    """
    is_stack = parameter.ndim == 3 and "experts." in name
    return (parameter.ndim == 2 or is_stack) and not name.startswith(NOT_HIDDEN)


def _adamw(
    spec: OptimizerSpec, matrices: list[nn.Parameter], vectors: list[nn.Parameter]
) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": spec.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if spec.optimizer == "adamw_stateless":
        return StatelessAdamW(groups, lr=spec.lr, eps=spec.eps)
    if spec.optimizer == "adamw_8bit":
        # torchao is an optional dependency
        from rlrun.runner.trainer.optim.eight_bit import EightBitAdamW

        return EightBitAdamW(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps)
    return torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=True)


def _muon(spec: OptimizerSpec, parameters: list[nn.Parameter]) -> list[torch.optim.Optimizer]:
    """Returns torch's Muon for the matrices that it accepts, and ours for the rest."""
    gathered = [weight for weight in parameters if weight.ndim == 3 or is_shared_unequally(weight)]
    gathered_set = set(gathered)
    settings = {"lr": spec.lr, "weight_decay": spec.weight_decay, "momentum": spec.momentum}
    matrices = torch.optim.Muon(
        [{"params": [weight for weight in parameters if weight not in gathered_set]}],
        adjust_lr_fn="match_rms_adamw",  # so that one learning rate suits Muon and AdamW
        **settings,
    )
    return [matrices, GatheringMuon(gathered, **settings)]
