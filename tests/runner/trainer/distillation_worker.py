"""One rank of the test of distillation on several layouts: `RANK WORLD_SIZE PORT CASES OUT`; the cases share
one process group.
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
from tests.runner.trainer.auxiliary_models_worker import everyones
from tests.runner.trainer.trainer_cases import (
    make_branches,
    make_masked_sequences,
    make_rank,
    make_spec,
    plan,
)


def run_case(case, rank, world_size, port):
    spec = make_spec(case["policy"], case["parallel"], case["algorithm"], **case["trainer"])
    section = case["teacher"] | ({"parallel": case["sharding"]} if case["sharding"] else {})
    spec = resolved(spec.model_dump(exclude_unset=True) | {"teacher": section})
    path = section.get("path")
    trainer = make_rank(case["policy"], spec, rank=rank, world_size=world_size, port=port, teacher=path)
    sequences = make_branches() if spec.trainer.share_prefixes else make_masked_sequences()
    steps = plan(sequences, spec)
    aside = steps
    if path is not None:
        degree = auxiliary_layout(spec.teacher.parallel, world_size).data_degree
        settings = {"max_batch_tokens": 100, "max_length": 512, "max_response_tokens": 64}
        aside = plan_steps(
            sequences, optimizer_steps=1, reduction="per_sample_mean", data_degree=degree, **settings
        )
    read = sequences
    if section.get("weights") is not None:
        read = [told_more(sequence) for sequence in sequences]
        aside = plan(read, spec)
    names = ["log_probs", "top_ids", "top_log_probs"]
    outputs = trainer.teacher.outputs(read, all_micro_batches(aside), names)
    found = {name: everyones(outputs[name]) for name in names}
    known = [
        dataclasses.replace(
            one, teacher_top_ids=found["top_ids"][i], teacher_top_log_probs=found["top_log_probs"][i]
        )
        for i, one in enumerate(sequences)
    ]
    metrics = []
    for _ in range(3):
        metrics += trainer.policy.train(known, steps)
        if section.get("weights") == "average":
            trainer.update_teacher()
    later = trainer.teacher.outputs(read, all_micro_batches(aside), names)
    found["later"] = everyones(later["log_probs"])
    metrics = [{name: value for name, value in each.items() if "train/" in name} for each in metrics]
    return trainer, found | {"metrics": metrics}


def told_more(sequence):
    """The sequence after a longer prompt."""
    tokens = np.concatenate([np.arange(5, dtype=np.int32), sequence.tokens])
    return dataclasses.replace(sequence, tokens=tokens, prompt_length=sequence.prompt_length + 5)


def main():
    rank, world_size, port = (int(value) for value in sys.argv[1:4])
    results = {}
    for case in json.loads(sys.argv[4]):
        trainer, results[case["name"]] = run_case(case, rank, world_size, port)
    assert dist.is_initialized() == (world_size > 1)
    torch.save(results, Path(sys.argv[5]) / f"{rank}.pt")
    trainer.close()


if __name__ == "__main__":
    main()
