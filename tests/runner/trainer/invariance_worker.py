"""One rank of the invariance test: `RANK WORLD_SIZE PORT LAYOUTS OUT`; layouts share one process group."""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from rlrun.runner.batches.packing import all_micro_batches
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan

REDUCTIONS = ("per_sample_mean", "per_token", "dr_grpo")
WEIGHTED = "per_token, with weights of tokens"
"""The case in which two samples have weights for the cross-entropy: most ranks have none of them."""
CASES = (*REDUCTIONS, WEIGHTED)
SPLITS = {"small": (60, 1), "one": (1000, 1), "backwards": (200, -1)}
"""Budget of a micro-batch, and the order of the samples."""


def off_policy_sequences():
    """Old log-probs that make every sample's ratio its own, and nothing clipped."""
    rng = np.random.default_rng(5)
    return [
        dataclasses.replace(one, old_log_probs=(rng.normal(-5.8, 0.3, len(one.loss_mask))).astype(np.float32))
        for one in make_sequences(12)
    ]


def weighted_sequences():
    """Samples with weights for the cross-entropy and the KL: the first two's own, and those of all others."""
    made = []
    for number, one in enumerate(off_policy_sequences()):
        length = len(one.loss_mask)
        cross_entropy = np.linspace(0, 1, length) if number < 2 else np.zeros(length)
        kl_weights = np.full(length, 0.5 if number == 1 else 1.0)
        made.append(
            dataclasses.replace(
                one,
                cross_entropy=cross_entropy.astype(np.float32),
                kl_weights=kl_weights.astype(np.float32),
            )
        )
    return made


def measure(folder, parallel, rank=0, world_size=1, port=None):
    """Loss, gradient norm and mean log-prob of every reduction and split; log-probs are asked for between the
    steps, and the steps are too small to tell.
    """
    algorithm = {"type": "gspo", "clip": 0.9, "clip_high": 99.0, "entropy_coef": 0.1}
    spec = make_spec(folder, parallel, algorithm, lr=1e-12, max_grad_norm=1e9, weight_decay=0.0)
    trainer = make_rank(folder, spec, rank=rank, world_size=world_size, port=port)
    found = {}
    for case in CASES:
        for split, (budget, order) in SPLITS.items():
            reduction = case.partition(",")[0]
            changed = spec.trainer.model_copy(update={"reduction": reduction, "max_tokens_per_rank": budget})
            sequences = (weighted_sequences() if case == WEIGHTED else off_policy_sequences())[::order]
            steps = plan(sequences, spec.model_copy(update={"trainer": changed}))
            trainer.policy.log_probs(sequences, all_micro_batches(steps))
            (metrics,) = trainer.policy.train(sequences, steps)
            names = ["loss", "grad_norm", "entropy", "pg_loss"]
            names += ["ce_loss", "ce_tokens"] if case == WEIGHTED else []
            found[f"{case}, {split}"] = [metrics[f"train/{name}"] for name in names]
    return trainer, found


def main(rank, world_size, port, layouts, out):
    found = {}
    for name, folder, parallel in layouts:
        trainer, found[name] = measure(folder, parallel, rank, world_size, port)
    (Path(out) / f"{world_size}-{rank}.json").write_text(json.dumps(found))
    trainer.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]), sys.argv[5])
