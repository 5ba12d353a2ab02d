"""AdamW, SGD, and Muon with AdamW, behind one face: steps, and state by parameter name for checkpoints."""

from collections.abc import Mapping

import torch
from torch import nn

from rlrun.runner.trainer.optim.offload import host_zeros, step_in_turns
from rlrun.specs.sections.optimizer import OptimizerSpec

NOT_HIDDEN = ("tok_embeddings.", "model.embed_tokens.", "lm_head.")
"""Matrices that are no map from hidden to hidden states; Muon is not for them."""
ADAM_STATE, MOMENTUM_STATE = ("exp_avg", "exp_avg_sq"), ("momentum_buffer",)


class Optimizer:
    """The optimizer of a spec over parameters by name."""

    def __init__(
        self, spec: OptimizerSpec, parameters: Mapping[str, nn.Parameter], *, on_host: bool = False
    ) -> None:
        """Weight decay is for matrices alone: norms and biases have nothing to decay to. `on_host`: state
        lies in host memory and visits the parameters' device for the step.
        """
        self._spec, self._on_host = spec, on_host
        self._parameters = dict(parameters)
        matrices = {name: one for name, one in parameters.items() if _is_matrix(name, one)}
        vectors = [one for name, one in parameters.items() if name not in matrices]
        hidden = {name: one for name, one in matrices.items() if _is_hidden(name, one)}
        self._decayed = list(matrices.values())
        match spec.optimizer:
            case "adamw":
                parts = [_adamw(spec, self._decayed, vectors)]
            case "sgd":
                everything = [{"params": list(parameters.values())}]
                parts = [torch.optim.SGD(everything, lr=spec.lr, momentum=spec.momentum)]
            case "muon":
                others = [one for name, one in matrices.items() if name not in hidden]
                parts = [_muon(spec, list(hidden.values())), _adamw(spec, others, vectors)]
        self._parts: list[torch.optim.Optimizer] = parts

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for part in self._parts:
            part.zero_grad()

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One step at this learning rate."""
        if self._spec.optimizer == "sgd" and self._decayed:  # torch's own would pass through the momentum
            torch._foreach_mul_(self._decayed, 1.0 - rate * self._spec.weight_decay)
        if self._on_host:
            self.tensors()
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            if self._on_host:
                step_in_turns(part)
            else:
                part.step()

    def tensors(self) -> dict[str, torch.Tensor]:
        """State by kind and parameter name; what does not exist yet is made."""
        found: dict[str, torch.Tensor] = {}
        owners = self._owners()
        for name, parameter in self._parameters.items():
            part = owners[parameter]
            state = part.state[parameter]
            if not state:
                state |= {kind: self._zeros(parameter) for kind in _kinds(part)}
                if isinstance(part, torch.optim.AdamW):
                    state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            found |= {f"{kind}.{name}": state[kind] for kind in _kinds(part)}
        return found

    @property
    def updates(self) -> torch.Tensor:
        """Steps that Adam's bias correction counts, a scalar; 0 before the first, and without Adam."""
        counts = [state["step"] for part in self._parts for state in part.state.values() if "step" in state]
        return counts[0].detach().cpu().clone() if counts else torch.tensor(0.0)

    @updates.setter
    def updates(self, count: torch.Tensor) -> None:
        for part in self._parts:
            for state in part.state.values():
                if "step" in state:
                    state["step"].copy_(count)

    @property
    def held(self) -> list[torch.Tensor]:
        """The state that exists."""
        return [one for part in self._parts for state in part.state.values() for one in state.values()]

    def _zeros(self, parameter: nn.Parameter) -> torch.Tensor:
        return host_zeros(parameter) if self._on_host else torch.zeros_like(parameter, requires_grad=False)

    def _owners(self) -> dict[nn.Parameter, torch.optim.Optimizer]:
        return {
            parameter: part
            for part in self._parts
            for group in part.param_groups
            for parameter in group["params"]
        }


def _is_matrix(name: str, parameter: nn.Parameter) -> bool:
    """Biases of a layer's experts have two dimensions, too."""
    return parameter.ndim > 1 and "bias" not in name.rpartition(".")[2]


def _is_hidden(name: str, parameter: nn.Parameter) -> bool:
    return parameter.ndim == 2 and not name.startswith(NOT_HIDDEN)


def _kinds(part: torch.optim.Optimizer) -> tuple[str, ...]:
    return ADAM_STATE if isinstance(part, torch.optim.AdamW) else MOMENTUM_STATE


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
        adjust_lr_fn="match_rms_adamw",
    )
