"""Writes a dump for `rlrun conform` from inside OpenRLHF's trainer (docs/conform.md).

Copy this file beside your script, and call it at the end of `compute_advantages_and_returns` of the
experience maker, before it returns:

    from openrlhf_dump import dump_experiences
    dump_experiences(experiences, "dumps/step-1.npz", samples_per_prompt, estimator="group_norm")

An Experience has tokens, masks, log-probs, rewards and advantages at that point, and no loss yet, so masks
and advantages are compared. A KL in the reward is not translated: its advantages differ from token to token.
It needs numpy and what OpenRLHF has, and not rlrun. Written for commit 3c3be62.
"""

import json
from pathlib import Path

import numpy as np

ALGORITHMS = {
    "group_norm": {"type": "grpo", "std_epsilon": 1e-9},
    "dr_grpo": {"type": "dr_grpo"},
    "rloo": {"type": "rloo"},
}
"""OpenRLHF's estimator of advantages, and the algorithm of rlrun that has the same ones."""


def dump_experiences(experiences, path, samples_per_prompt, estimator="group_norm", end_token_ids=()):
    """Writes the experiences of a step, whose samples are in the order of their prompts.

    `end_token_ids`: those of the model, to check the masks of answers of one turn.
    """
    if estimator not in ALGORITHMS:
        raise ValueError(f"estimator {estimator!r} is not one of {', '.join(ALGORITHMS)}")
    arrays = {
        "tokens": _joined([each.sequences[:, -each.action_mask.shape[1] :] for each in experiences]),
        "mask": _joined([each.action_mask for each in experiences]),
        "log_probs": _joined([each.action_log_probs for each in experiences]),
        "advantages": _joined([each.advantages for each in experiences]),
    }
    for name, field in (
        ("sampling_log_probs", "rollout_log_probs"),
        ("reference_log_probs", "base_action_log_probs"),
    ):
        if all(getattr(each, field) is not None for each in experiences):
            arrays[name] = _joined([getattr(each, field) for each in experiences])
    arrays["tokens"] = arrays["tokens"].astype(np.int64)
    rewards = np.concatenate([_array(each.rewards).reshape(-1) for each in experiences])
    if len(rewards) % samples_per_prompt:
        raise ValueError(f"{len(rewards)} samples are not groups of {samples_per_prompt}")
    settings = {
        "algorithm": ALGORITHMS[estimator],
        "batch": {"source": f"OpenRLHF, {Path(path).stem}", "end_token_ids": list(end_token_ids)},
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        settings=json.dumps(settings),
        rewards=rewards.astype(np.float64),
        groups=np.arange(len(rewards)) // samples_per_prompt,
        **arrays,
    )


def _joined(tensors):
    """Returns tensors `[b, A]` of different A as one array, padded on the right with 0."""
    arrays = [_array(tensor) for tensor in tensors]
    width = max(array.shape[1] for array in arrays)
    return np.concatenate([np.pad(array, ((0, 0), (0, width - array.shape[1]))) for array in arrays])


def _array(tensor):
    return tensor.detach().float().cpu().numpy()
