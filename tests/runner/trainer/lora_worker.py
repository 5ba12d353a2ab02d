"""One rank of the tests of adapters: `RANK WORLD_SIZE PORT CASES OUT`; all cases share one process group."""

import copy
from pathlib import Path

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.trainer.roles.reference import Reference
from rlrun.runner.trainer.roles.teacher import AdapterTeacher
from tests.runner.trainer.parity_worker import keep, run_all, written
from tests.runner.trainer.trainer_cases import make_masked_sequences, make_rank, make_spec, plan


def adapters(trainer):
    """The adapters' tensors in full, on rank 0."""
    return {name: tensor.clone() for name, tensor in trainer.policy.parameters.gather_adapters()}


def gradients(trainer):
    """The gradients of the adapters in full, on rank 0."""
    parameters = copy.copy(trainer.policy.parameters)
    parameters.masters = {
        name: master.grad for name, master in parameters.masters.items() if master.grad is not None
    }
    return {name: gradient.clone() for name, gradient in parameters.gather_adapters()}


def teacher_of(trainer, case):
    """A teacher with the adapter that the policy started from."""
    lora = trainer._spec.trainer.lora.shape
    return AdapterTeacher(trainer.policy, Path(case["adapter"]), trainer._architecture, lora)


def run_case(case, rank, world_size, port, out):
    trainer_settings = case["trainer"] | {"lora": case["lora"]}
    spec = make_spec(case["folder"], case["parallel"], adapter=case["adapter"], **trainer_settings)
    # native engines merge adapters themselves, with the same arithmetic
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"lora_sync": "merged"})})
    trainer = make_rank(case["folder"], spec, rank=rank, world_size=world_size, port=port)
    sequences = make_masked_sequences()
    steps = plan(sequences, spec)
    reference = Reference(trainer.policy)
    log_probs = trainer.policy.log_probs(sequences, all_micro_batches(steps))
    before = written(trainer, 0)
    (metrics,) = trainer.policy.train(sequences, steps)
    parameters = trainer.policy.parameters
    result = {
        "log_probs": log_probs,
        "before": before,
        "gradients": gradients(trainer),
        "dtypes": {name: tensor.dtype for name, tensor in parameters.holders[0].items()},
        "with_gradient": sorted(name for name, each in parameters.masters.items() if each.grad is not None),
        "after": written(trainer, 1),
        "adapters": adapters(trainer),
        "metrics": metrics,
        "changed": trainer.policy.log_probs(sequences, all_micro_batches(steps)),
        "reference": reference.log_probs(sequences, all_micro_batches(steps)),
        "teacher": teacher_of(trainer, case).log_probs(sequences, all_micro_batches(steps)),
        "after_teacher": trainer.policy.log_probs(sequences, all_micro_batches(steps)),
        "saved": sorted(trainer.policy.state()),
    }
    trainer.save(case["checkpoint"])
    if case["resume"]:
        trainer.load(case["resume"])
        result["resumed"] = adapters(trainer)
    keep(result, trainer, case, rank, out)
    return trainer


if __name__ == "__main__":
    run_all(run_case)
