"""One rank of the tests of low precision: `RANK WORLD_SIZE PORT CASES OUT`; all cases share one process
group.
"""

import copy

import torch

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.trainer.parameters.parameters import no_rounding
from tests.runner.trainer import lora_worker
from tests.runner.trainer.parity_worker import keep, run_all, written
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan


def state_of(trainer):
    """A copy of everything that a checkpoint has."""
    return {name: tensor.clone() for name, tensor in trainer.policy.state().items()}


def gradients(trainer):
    """The gradients of everything that is trained, in full on rank 0 and empty on others."""
    parameters = copy.copy(trainer.policy.parameters)
    if parameters.adapters:
        return lora_worker.gradients(trainer)
    parameters._round = no_rounding
    parameters.masters = {
        name: torch.zeros_like(master) if master.grad is None else master.grad
        for name, master in parameters.masters.items()
    }
    return {name: gradient.clone() for name, gradient in parameters.gather()}


def run_case(case, rank, world_size, port, out):
    """Trains twice, the second time also from a checkpoint."""
    spec = make_spec(case["folder"], case["parallel"], **case["trainer"])
    if spec.trainer.lora:  # this test reads whole models
        spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"lora_sync": "merged"})})
    trainer = make_rank(case["folder"], spec, rank=rank, world_size=world_size, port=port)
    sequences = make_sequences()
    steps = plan(sequences, spec)
    log_probs = trainer.policy.log_probs(sequences, all_micro_batches(steps))
    before = written(trainer, 0)
    (metrics,) = trainer.policy.train(sequences, steps)
    own_gradients = gradients(trainer)
    trainer.save(case["checkpoint"])
    trainer.policy.train(sequences, steps)
    twice = state_of(trainer)
    trainer.load(case["checkpoint"])
    trainer.policy.train(sequences, steps)
    resumed = state_of(trainer)
    result = {
        "log_probs": log_probs,
        "before": before,
        "gradients": own_gradients,
        "metrics": metrics,
        "differing": [name for name in twice if not torch.equal(_local(twice[name]), _local(resumed[name]))],
        "saved": sorted(twice),
    }
    keep(result, trainer, case, rank, out)
    return trainer


def _local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


if __name__ == "__main__":
    run_all(run_case)
