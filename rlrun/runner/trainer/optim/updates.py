"""Optimizer steps of the policy and of the critic.

gradients ─▶ norm ─▶ finite? ─▶ clipping ─▶ optimizer at the scheduled rate ─▶ the model's own copies
"""

import math

import torch
import torch.distributed as dist

from rlrun.runner.trainer.optim.gradients import clip_gradients, gradient_norm, non_finite_error
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.runner.trainer.parameters.parameters import Parameters
from rlrun.specs.sections.optimizer import OptimizerSpec

MTP_NORM = "train/mtp_grad_norm"


class Updates:
    """Takes the optimizer steps of one model, and counts them."""

    def __init__(
        self,
        spec: OptimizerSpec,
        parameters: Parameters,
        optimizer: Optimizer,
        *,
        total: int,
        section: str,
        stops: bool,
        stages: dist.ProcessGroup | None = None,
    ) -> None:
        """`total` is the number of optimizer steps of the whole job, where schedules end. `section` is the
        model's section of the spec, for errors. `stops`: a value that is not finite ends the job; otherwise
        its step is skipped. `stages` are the ranks of the pipeline, if there is one.
        """
        self._spec, self._section, self._stops = spec, section, stops
        self._parameters, self._optimizer = parameters, optimizer
        self._total, self._stages = total, stages
        masters = parameters.masters
        self._model = {name: masters[name] for name in masters if name not in parameters.mtp}
        self._mtp = {name: masters[name] for name in masters if name in parameters.mtp}
        """Clipped by themselves, so that the policy does not depend on them."""
        self.count = 0
        """Optimizer steps so far, skipped ones included."""

    def gradient_norm(self) -> torch.Tensor:
        """Returns the norm of the gradients over all ranks, a scalar that the host has not waited for.

        Those of an MTP layer are left out.
        """
        self._parameters.wait_for_gradients()
        return gradient_norm(self._model, copies=self._parameters.copies, stages=self._stages)

    def mtp_gradient_norm(self) -> dict[str, torch.Tensor]:
        """Returns the norm of the MTP layer's gradients by its metric's name; empty without such a layer."""
        return {MTP_NORM: gradient_norm(self._mtp)} if self._mtp else {}

    def apply(self, loss: float, norm: float, mtp_norm: float = 0.0) -> dict[str, float]:
        """Clips the gradients that the parameters have, and takes one step with them; returns `lr` and
        `skipped_steps` (0 or 1).

        `loss`, `norm` and `mtp_norm` are the step's loss and the norms of its gradients, over all ranks.
        NonFiniteError before the weights change, where one of them is not finite and `stops` is set. They are
        the same on every rank, so all ranks decide alike.
        """
        rate = learning_rate(self._spec, self.count, self._total)
        finite = all(math.isfinite(value) for value in (loss, norm, mtp_norm))
        if finite:
            clip_gradients(self._model, self._spec.max_grad_norm, norm)
            clip_gradients(self._mtp, self._spec.max_grad_norm, mtp_norm)
            self._optimizer.step(rate)
            self._parameters.refresh()
        elif self._stops:
            raise non_finite_error(self.count + 1, loss, self._parameters.masters, self._section)
        self.count += 1
        return {"lr": rate, "skipped_steps": float(not finite)}


def finite_metrics(metrics: dict[str, float]) -> dict[str, float]:
    """Returns the metrics without those that are NaN or infinite."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def learning_rate(spec: OptimizerSpec, step: int, total: int) -> float:
    """Returns the learning rate of optimizer step `step` (from 0) of `total`.

    Warm-up rises linearly and reaches the peak after its number of steps. The schedule then runs until its
    end (`total`, if the spec has no `schedule_steps`), where every schedule except the constant one arrives
    at `min_lr_ratio`.
    """
    begin, end = spec.warmup_of(total), spec.schedule_of(total)
    if step < begin:
        start = spec.warmup_start_ratio
        return spec.lr * (start + (1.0 - start) * (step + 1) / (begin + 1))
    if spec.schedule == "wsd":
        begin = max(begin, end - (spec.decay_steps or -(-end // 10)))
    progress = min(max(step - begin, 0) / max(end - begin, 1), 1.0)
    share = 1.0
    if spec.schedule != "constant":
        share = _remaining(spec.decay_curve if spec.schedule == "wsd" else spec.schedule, progress)
    return spec.lr * (spec.min_lr_ratio + (1.0 - spec.min_lr_ratio) * share)


def _remaining(curve: str, progress: float) -> float:
    """Returns the share of the decay that is still ahead: 1 where `progress` is 0, and 0 where it is 1.

    The curves of `wsd` are those of Megatron's OptimizerParamScheduler.
    """
    match curve:
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * progress))
        case "exponential":
            return 2.0 * 0.5**progress - 1.0
        case "sqrt":
            return 1.0 - math.sqrt(progress)
        case _:
            return 1.0 - progress
