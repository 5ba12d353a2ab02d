"""Log-probs as SGLang's sampler computes them with `rl_on_policy_target = "fsdp"`."""

import torch

from rlrun.runner.trainer.cpu_ops.softmax import softmax_statistics


def target_log_softmax(logits: torch.Tensor, targets: torch.Tensor, temperature: float) -> torch.Tensor:
    """Returns the targets' log-probs, the log-sum-exps and the entropies of logits / temperature, `[3, R]`
    float32, for logits `[R, V]` in bfloat16.

    Log-probs are rounded as in the sampler (layers/sampler.py of SGLang 0.5.23): logits are divided in
    float32 and rounded to bfloat16, of which torch's log-softmax is taken. Log-sum-exps, from which gradients
    are computed, and entropies are not rounded.
    """
    maximum, total, _, weighted = softmax_statistics(logits, targets, temperature).unbind()
    log_total = total.log()
    # by a tensor, as the sampler does: CUDA multiplies by the reciprocal of a plain number
    temperatures = logits.new_full((len(logits), 1), temperature, dtype=torch.float32)
    log_probs = torch.log_softmax(logits.div(temperatures).bfloat16(), dim=-1)
    chosen = log_probs.gather(1, targets[:, None])[:, 0].float()
    return torch.stack((chosen, maximum + log_total, log_total - weighted / total))
