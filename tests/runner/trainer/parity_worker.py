"""One rank of the parity tests: `RANK WORLD_SIZE PORT CASES OUT`; all cases share one process group."""

import copy
import json
import sys
from pathlib import Path
from typing import get_args

import torch

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.weights.carriers.native.shared_memory import attach
from rlrun.specs.needs import Statistic
from tests.runner.trainer.trainer_cases import make_masked_sequences, make_rank, make_spec, plan


def gradients(trainer):
    """Returns the gradient of every HF tensor on rank 0; zeros for what is not trained."""
    parameters = copy.copy(trainer.policy.parameters)
    parameters.masters = {
        name: torch.zeros_like(master) if master.grad is None else master.grad
        for name, master in parameters.masters.items()
    }
    return {name: gradient.clone() for name, gradient in parameters.gather()}


def written(trainer, version):
    manifest = trainer.write_weights(version)
    if manifest is None:
        return None
    attached = attach(manifest)
    weights = {name: tensor.clone() for name, tensor in attached.tensors.items()}
    attached.close()
    return weights


def run_case(case, rank, world_size, port, out):
    spec = make_spec(case["folder"], case["parallel"], **case.get("trainer", {}))
    trainer = make_rank(case["folder"], spec, rank=rank, world_size=world_size, port=port)
    sequences = make_masked_sequences()
    steps = plan(sequences, spec)
    outputs = trainer.policy.outputs(sequences, all_micro_batches(steps), ["log_probs", *get_args(Statistic)])
    before, start = written(trainer, 0), trainer.policy.parameters.host_copy()
    (metrics,) = trainer.policy.train(sequences, steps)
    result = {
        **outputs,
        "before": before,
        "gradients": gradients(trainer),
        "after": written(trainer, 1),
        "metrics": metrics,
    }
    result["changed"] = trainer.policy.log_probs(sequences, all_micro_batches(steps))
    with trainer.policy.parameters.swapped(start):
        result["swapped"] = trainer.policy.log_probs(sequences, all_micro_batches(steps))
    trainer.save(case["checkpoint"])
    if case["resume"]:
        trainer.load(case["resume"])
        result["resumed"] = written(trainer, 2)
        trainer.policy.log_probs(sequences, all_micro_batches(steps))
        # fewer sequences than data ranks: some have nothing to do, and keep pace
        (result["next"],) = trainer.policy.train(sequences[:1], plan(sequences[:1], spec))
    keep(result, trainer, case, rank, out)
    return trainer


def keep(result, trainer, case, rank, out):
    """Writes what a rank of a case gave, and frees the memory that its weights were written to."""
    torch.save(result, out / f"{case['name']}-{rank}.pt")
    if rank == 0:
        trainer._writer.close()


def run_all(run_case):
    """Runs the cases of the command line on this rank, all of them in one process group."""
    rank, world_size, port = (int(value) for value in sys.argv[1:4])
    for case in json.loads(sys.argv[4]):
        trainer = run_case(case, rank, world_size, port, Path(sys.argv[5]))
    trainer.close()


if __name__ == "__main__":
    run_all(run_case)
