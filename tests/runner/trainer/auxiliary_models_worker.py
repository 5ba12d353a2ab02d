"""One rank of the test of auxiliary models: `RANK WORLD_SIZE PORT CASES OUT`; the cases share one process
group.
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from rlrun.runner.batches.packing import all_micro_batches, plan_steps
from rlrun.specs.sections.auxiliary_models import auxiliary_layout
from tests.resolved_specs import resolved
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan


def everyones(found):
    """What all ranks have found, merged; each as the driver would see it."""
    if not dist.is_initialized():
        return found
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, found)
    return {index: values for part in parts for index, values in part.items()}


def run_case(case, rank, world_size, port):
    spec = make_spec(
        case["policy"], case["parallel"], {"type": "ppo", "distillation": {}}, optimizer=case["optimizer"]
    )
    sections = {
        "teacher": {"path": case["teacher"], "parallel": case["auxiliary"]},
        "critic": {"lr": 1e-2, "optimizer": case["optimizer"], "parallel": case["auxiliary"]},
    }
    spec = resolved(spec.model_dump(exclude_unset=True) | sections)
    trainer = make_rank(
        case["policy"], spec, rank=rank, world_size=world_size, port=port, teacher=case["teacher"]
    )
    sequences = make_sequences()
    settings = {
        "optimizer_steps": 1,
        "reduction": "per_sample_mean",
        "max_batch_tokens": 100,
        "max_length": 512,
    }
    degree = auxiliary_layout(spec.critic.parallel, world_size).data_degree
    aside = plan_steps(sequences, **settings, max_response_tokens=64, data_degree=degree)
    batches = all_micro_batches(aside)
    mine = trainer.teacher.log_probs(sequences, batches)
    result = {"mine": len(mine), "teacher": everyones(mine), "metrics": []}
    for _ in range(2):
        values = everyones(trainer.critic.values(sequences, batches))
        known = [
            dataclasses.replace(one, values=values[i][:-1], returns=np.ones(len(one.loss_mask), np.float32))
            for i, one in enumerate(sequences)
        ]
        result["metrics"] += trainer.critic.train(known, aside)
        (metrics,) = trainer.policy.train(sequences, plan(sequences, spec))
        result["metrics"].append({name: value for name, value in metrics.items() if "train/" in name})
    result["values"] = everyones(trainer.critic.values(sequences, batches))
    return trainer, result


def main():
    rank, world_size, port = (int(value) for value in sys.argv[1:4])
    results = {}
    for case in json.loads(sys.argv[4]):
        trainer, results[case["name"]] = run_case(case, rank, world_size, port)
    torch.save(results, Path(sys.argv[5]) / f"{rank}.pt")
    trainer.close()


if __name__ == "__main__":
    main()
