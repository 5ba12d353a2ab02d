"""Dumps the batches of TRL's GRPOTrainer for `rlrun conform` (docs/conform.md). It needs TRL and numpy, not
rlrun.

    class Trainer(DumpsBatches, GRPOTrainer):
        pass

    trainer = Trainer(model, …)
    trainer.dump_folder = Path("dumps")     # dumps/step-1.npz, dumps/step-2.npz, …
    trainer.train()

Written for TRL 1.16 and one process. A dump is one optimizer step: its micro-batches in turn, with the
gradient of the loss for the log-prob of each token.
"""

import json
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

REDUCTIONS = {"grpo": "per_sample_mean", "dr_grpo": "dr_grpo", "dapo": "per_token", "bnpo": "per_token"}
STD_EPSILON = 1e-4
"""What TRL adds to the standard deviation of a group's rewards."""


class DumpsBatches:
    """A mixin, to be named before GRPOTrainer."""

    dump_folder = Path("dumps")
    dump_steps = 10
    """Number of optimizer steps that are dumped, from the first."""

    def _calculate_rewards(self, *args, **kwargs):
        self._rewards_per_func = super()._calculate_rewards(*args, **kwargs)
        return self._rewards_per_func

    def _generate_and_score_completions(self, inputs):
        """Adds rewards and groups to the batch, which TRL shuffles and splits with it."""
        batch = super()._generate_and_score_completions(inputs)
        if self.model.training:
            rewards = self._rewards_per_func
            is_unscored = torch.isnan(rewards).all(dim=1)
            rewards = (rewards * self.reward_weights.to(rewards.device)).nansum(dim=1)
            batch["rewards"] = rewards.masked_fill(is_unscored, torch.nan)
            batch["groups"] = torch.arange(len(batch["rewards"])) // self.num_generations
        return batch

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        outputs = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        if torch.is_grad_enabled() and outputs[0].requires_grad:
            outputs[0].retain_grad()
            self._trained_log_probs, self._entropies = outputs[0], outputs[1]
        return outputs

    def _compute_loss(self, model, inputs):
        self._inputs, self._loss = inputs, super()._compute_loss(model, inputs)
        return self._loss

    def training_step(self, *args, **kwargs):
        result = super().training_step(*args, **kwargs)
        if self.state.global_step < self.dump_steps:
            self._micro_batches = [*getattr(self, "_micro_batches", []), self._micro_batch()]
            if self._step % self.current_gradient_accumulation_steps == 0:
                self._write_dump(self._micro_batches)
                self._micro_batches = []
        return result

    def _micro_batch(self):
        """Returns what the loss was computed from, and what it is."""
        inputs = self._inputs
        names = {
            "tokens": "completion_ids",
            "mask": "completion_mask",
            "rewards": "rewards",
            "groups": "groups",
            "advantages": "advantages",
            "old_log_probs": "old_per_token_logps",
            "sampling_log_probs": "sampling_per_token_logps",
            "reference_log_probs": "ref_per_token_logps",
        }
        arrays = {name: inputs[key] for name, key in names.items() if inputs.get(key) is not None}
        if "tool_mask" in inputs:
            arrays["mask"] = arrays["mask"] * inputs["tool_mask"]
        arrays["log_probs"] = self._trained_log_probs
        arrays["gradients"] = self._trained_log_probs.grad
        if self._entropies is not None:
            arrays["entropies"] = self._entropies
        return {name: array.detach().float().cpu().numpy() for name, array in arrays.items()} | {
            "loss": float(self._loss)
        }

    def _write_dump(self, micro_batches):
        arrays = {
            name: np.concatenate([batch[name] for batch in micro_batches])
            for name in micro_batches[0]
            if name != "loss"
        }
        for name in ("tokens", "groups", "mask"):
            arrays[name] = arrays[name].astype(np.int64)
        arrays["micro_batches"] = np.repeat(
            np.arange(len(micro_batches)), [len(batch["tokens"]) for batch in micro_batches]
        )
        step = self.state.global_step + 1
        self.dump_folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(
            self.dump_folder / f"step-{step}.npz",
            settings=json.dumps(self._dumped_settings(step)),
            loss=sum(batch["loss"] for batch in micro_batches),
            **arrays,
        )

    def _dumped_settings(self, step):
        """Returns TRL's settings by the names of rlrun's spec. Raises ValueError for those that it lacks."""
        args = self.args
        unsupported = {
            f"loss_type={args.loss_type}": args.loss_type not in REDUCTIONS,
            "scale_rewards=batch": self.scale_rewards == "batch",
            "normalize_then_sum": self.multi_objective_aggregation != "sum_then_normalize",
            "top_entropy_quantile": self.top_entropy_quantile < 1,
            "an entropy bonus": self._entropy_bonus_enabled,
            "off_policy_mask_threshold": self.off_policy_mask_threshold is not None,
            "a router's auxiliary loss": self.aux_loss_enabled,
            "vllm_importance_sampling_correction": self.use_vllm and self.vllm_importance_sampling_correction,
        }
        if used := [name for name, is_used in unsupported.items() if is_used]:
            raise ValueError(f"dumps for rlrun conform leave out {' and '.join(used)}: turn it off to dump")
        if (
            args.steps_per_generation != args.gradient_accumulation_steps
            or self.accelerator.num_processes > 1
        ):
            raise ValueError("dump with steps_per_generation = gradient_accumulation_steps and one process")
        algorithm = {
            "type": "gspo" if args.importance_sampling_level == "sequence" else "grpo",
            "clip": self.epsilon_low,
            "clip_high": self.epsilon_high,
            "normalize_std": self.scale_rewards != "none",
        }
        if algorithm["normalize_std"]:
            algorithm["std_epsilon"] = STD_EPSILON
        if args.delta is not None:
            algorithm["dual_clip"] = args.delta
        if self.beta != 0:
            algorithm["kl"] = {
                "in_loss": {"type": "k3", "coef": self.beta, "unbiased": args.use_bias_correction_kl}
            }
        iteration = (self._step - 1) // args.steps_per_generation % self.num_iterations
        return {
            "algorithm": algorithm,
            "trainer": {"reduction": REDUCTIONS[args.loss_type]},
            "rollout": {"temperature": self.temperature, "max_response_tokens": self.max_completion_length},
            "batch": {
                "source": f"TRL {version('trl')}, step {step}",
                "on_policy": iteration == 0,
                "end_token_ids": [] if "tool_mask" in self._inputs else [self.processing_class.eos_token_id],
            },
        }
