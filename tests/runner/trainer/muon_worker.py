"""One rank of the test of Muon's layouts: `RANK WORLD_SIZE PORT CASES OUT`."""

import torch

from tests.runner.trainer.parity_worker import run_all, written
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan


def run_case(case, rank, world_size, port, out):
    """Writes the weights after two steps, and after two steps of which the second is a resumed run's."""
    settings = {"optimizer": "muon", "lr": 1e-2, "weight_decay": 0.1, "max_grad_norm": 1e9}
    spec = make_spec(case["folder"], case["parallel"], **settings)
    sequences = make_sequences()
    trainer = make_rank(case["folder"], spec, rank=rank, world_size=world_size, port=port)
    start = written(trainer, 0)
    trainer.policy.train(sequences, plan(sequences, spec))
    result = {"start": start, "first": written(trainer, 1)}
    trainer.save(f"{out}/checkpoint-{case['name']}")
    trainer.policy.train(sequences, plan(sequences, spec))
    result["undisturbed"] = written(trainer, 2)
    trainer.load(f"{out}/checkpoint-{case['name']}")
    trainer.policy.train(sequences, plan(sequences, spec))
    result["resumed"] = written(trainer, 3)
    stacks = {
        name: str(master.placements)
        for name, master in trainer.policy.parameters.masters.items()
        if master.ndim == 3 and hasattr(master, "placements")
    }
    torch.save(result | {"placements": set(stacks.values())}, out / f"{case['name']}-{rank}.pt")
    if rank == 0:
        trainer._writer.close()
    return trainer


if __name__ == "__main__":
    run_all(run_case)
