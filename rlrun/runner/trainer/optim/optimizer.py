"""AdamW, SGD, and Muon with AdamW behind one interface, with state by parameter name for checkpoints."""

from collections.abc import Mapping

import torch
from torch import nn

from rlrun.runner.trainer.optim.offload import host_zeros, step_in_turns
from rlrun.runner.trainer.transfers import wait
from rlrun.specs.sections.optimizer import OptimizerSpec

NOT_HIDDEN = ("tok_embeddings.", "model.embed_tokens.", "lm_head.")
"""Matrices that do not map hidden states to hidden states; AdamW trains them where Muon trains the rest."""
ADAM_STATE, MOMENTUM_STATE = ("exp_avg", "exp_avg_sq"), ("momentum_buffer",)


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
            case "adamw":
                optimizers: list[torch.optim.Optimizer] = [_adamw(spec, self._decayed, vectors)]
            case "sgd":
                group = {"params": list(parameters.values())}
                optimizers = [torch.optim.SGD([group], lr=spec.lr, momentum=spec.momentum)]
            case "muon":
                not_hidden = [weight for name, weight in matrices.items() if name not in hidden]
                optimizers = [_muon(spec, list(hidden.values())), _adamw(spec, not_hidden, vectors)]
        self._optimizers = optimizers

    def zero_grad(self) -> None:
        """Drops all gradients."""
        for optimizer in self._optimizers:
            optimizer.zero_grad()

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Takes one step at this learning rate."""
        if (
            self._spec.optimizer == "sgd" and self._decayed
        ):  # torch adds its own weight decay to the gradient, so to the momentum
            torch._foreach_mul_(self._decayed, 1.0 - rate * self._spec.weight_decay)
        if self._on_host:
            self._state()  # creates missing state in host memory, before torch would create it on the device
        for optimizer in self._optimizers:
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
                state |= {kind: self._zeros(parameter) for kind in _kinds(optimizer)}
                if isinstance(optimizer, torch.optim.AdamW):
                    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            tensors |= {f"{kind}.{name}": state[kind] for kind in _kinds(optimizer)}
        return tensors

    @property
    def updates(self) -> torch.Tensor:
        """Steps that Adam's bias correction counts, a scalar tensor; 0 before the first, and without Adam."""
        states = [state for optimizer in self._optimizers for state in optimizer.state.values()]
        counts = [state["step"] for state in states if "step" in state]
        return counts[0].detach().cpu().clone() if counts else torch.tensor(0.0)

    @updates.setter
    def updates(self, count: torch.Tensor) -> None:
        for optimizer in self._optimizers:
            for state in optimizer.state.values():
                if "step" in state:
                    state["step"].copy_(count)

    @property
    def held(self) -> list[torch.Tensor]:
        """The tensors of the state that exists."""
        states = [state for optimizer in self._optimizers for state in optimizer.state.values()]
        return [tensor for state in states for tensor in state.values()]

    def _zeros(self, parameter: nn.Parameter) -> torch.Tensor:
        return host_zeros(parameter) if self._on_host else torch.zeros_like(parameter, requires_grad=False)

    def _optimizer_of(self) -> dict[nn.Parameter, torch.optim.Optimizer]:
        return {
            parameter: optimizer
            for optimizer in self._optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Returns whether a parameter decays. Biases of a layer's experts have two dimensions, but do not."""
    return parameter.ndim > 1 and "bias" not in name.rpartition(".")[2]


def _is_hidden(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and not name.startswith(NOT_HIDDEN)


def _kinds(optimizer: torch.optim.Optimizer) -> tuple[str, ...]:
    return ADAM_STATE if isinstance(optimizer, torch.optim.AdamW) else MOMENTUM_STATE


def _adamw(
    spec: OptimizerSpec, matrices: list[nn.Parameter], vectors: list[nn.Parameter]
) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        lr=spec.lr,
        betas=spec.betas,
        eps=spec.eps,
        weight_decay=spec.weight_decay,
        fused=True,
    )


def _muon(spec: OptimizerSpec, matrices: list[nn.Parameter]) -> torch.optim.Muon:
    return torch.optim.Muon(
        [{"params": matrices}],
        lr=spec.lr,
        weight_decay=spec.weight_decay,
        momentum=spec.momentum,
        adjust_lr_fn="match_rms_adamw",  # so that one learning rate suits Muon and AdamW
    )
