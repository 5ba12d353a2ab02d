"""Writes a dump for `rlrun conform` from inside verl's trainer (docs/conform.md).

Copy this file beside your script, and call it in `RayPPOTrainer.fit`, after `compute_advantage`:

    from verl_dump import dump_batch
    dump_batch(batch, f"dumps/step-{self.global_steps}.npz", self.config)

A DataProto has tokens, masks, log-probs, rewards and advantages at that point, and no loss yet, so masks and
advantages are compared. It needs numpy and what verl has, and not rlrun. Written for commit b178a3c; nothing
is pickled.
"""

import json
from pathlib import Path

import numpy as np

ESTIMATORS = {"grpo": "grpo", "rloo": "rloo"}
"""verl's `algorithm.adv_estimator`, and the algorithm of rlrun that has the same advantages."""


def dump_batch(data, path, config, end_token_ids=()):
    """Writes the batch of a step. `data`: verl's DataProto; `config`: its whole configuration.

    `end_token_ids`: those of the model, to check the masks of answers of one turn.
    """
    estimator = str(getattr(config.algorithm.adv_estimator, "value", config.algorithm.adv_estimator))
    if estimator not in ESTIMATORS:
        raise ValueError(f"adv_estimator {estimator!r} is not one of {', '.join(ESTIMATORS)}")
    algorithm = {"type": ESTIMATORS[estimator]}
    if estimator == "grpo" and not config.algorithm.norm_adv_by_std_in_grpo:
        algorithm["normalize_std"] = False
    batch = data.batch
    names = {
        "tokens": "responses",
        "mask": "response_mask",
        "log_probs": "old_log_probs",
        "sampling_log_probs": "rollout_log_probs",
        "reference_log_probs": "ref_log_prob",
        "advantages": "advantages",
    }
    arrays = {name: _array(batch[key]) for name, key in names.items() if key in batch.keys()}  # noqa: SIM118 a TensorDict
    arrays["tokens"] = arrays["tokens"].astype(np.int64)
    uids = np.asarray(data.non_tensor_batch["uid"]).astype(str)
    settings = {
        "algorithm": algorithm,
        "rollout": {"temperature": float(config.actor_rollout_ref.rollout.temperature)},
        "batch": {"source": f"verl, {Path(path).stem}", "end_token_ids": list(end_token_ids)},
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path,
        settings=json.dumps(settings),
        # with a KL in the reward, advantages are those of the rewards after it
        rewards=_array(batch["token_level_rewards"]).sum(-1),
        groups=np.unique(uids, return_inverse=True)[1],
        **arrays,
    )


def _array(tensor):
    return tensor.detach().float().cpu().numpy()
