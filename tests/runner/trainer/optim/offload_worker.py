"""One rank of the offloading test: `RANK WORLD_SIZE PORT CASES OUT`."""

import json
import sys

import torch
from torch.distributed.tensor import DTensor

from rlrun.runner.trainer.compat.meshes import local_part
from tests.runner.trainer.optim.test_offload import same, trained, whole
from tests.runner.trainer.trainer_cases import make_rank, make_spec


def main(rank, world_size, port, cases):
    for folder, parallel, optimizer, alone in cases:
        results = {}
        # in 8 bits the host would take minutes for the steps of a large model, so that "all" is refused
        offloads = ("none", "optimizer") if optimizer == "adamw_8bit" else ("none", "optimizer", "all")
        for offload in offloads:
            spec = make_spec(folder, parallel, offload=offload, optimizer=optimizer)
            trainer = make_rank(folder, spec, rank=rank, world_size=world_size, port=port)
            metrics = trained(trainer, spec, 1)
            held = [*trainer.policy.parameters.held, *trainer.policy.optimizer.held]
            assert any(isinstance(tensor, DTensor) for tensor in held)
            assert (optimizer == "adamw_8bit") == any(tensor.dtype == torch.uint8 for tensor in held)
            trainer.offload()
            assert not any(local_part(tensor).untyped_storage().nbytes() for tensor in held)
            trainer.reload()
            results[offload] = metrics + trained(trainer, spec, 1), whole(trainer)
        for offload in offloads[1:]:
            assert results[offload][0] == results["none"][0], (parallel, offload)
            assert same(results[offload][1], results["none"][1]), (parallel, offload)
        if alone:
            trainer.load(alone)
            check_state(trainer, torch.load(f"{alone}.pt"))
    trainer.close()


def check_state(trainer, expected):
    """Asserts that state loaded from a checkpoint of one rank has the same values on all ranks together."""
    state = trainer.policy.optimizer.tensors()
    assert state.keys() == expected.keys()
    for name, tensor in state.items():
        whole_tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        assert torch.equal(whole_tensor, expected[name]), name


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]))
