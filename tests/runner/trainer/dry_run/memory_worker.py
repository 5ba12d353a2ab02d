"""One rank of the memory test: `RANK WORLD_SIZE PORT CASES OUT`; writes the bytes it holds in each layout.

With a world of 1 it is each of two ranks in turn, and alone: collectives are torch's fake ones, which give
something of the right shape at once, and memory is real. Nobody waits for anybody, so a peak is the same in
every run; where ranks do wait, they hold for longer what they are about to free.
"""

import gc
import itertools
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from rlrun.models.config_json import read_architecture
from rlrun.models.tensor_names import hf_tensors
from rlrun.runner.planning.rank_layout import data_rank
from rlrun.runner.trainer.compat.meshes import FakeStore
from rlrun.runner.trainer.parameters import gathering
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan


def held(tensors):
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def peak_of(work):
    """The most bytes that torch's CPU allocator had given out during `work`, over what it had before."""
    gc.collect()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as found:
        work()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes))


def measure(trainer, spec, rank):
    """Bytes that a rank holds, and has at most in a step beside parameters and optimizer."""
    sequences = make_sequences(30)
    steps = plan(sequences, spec)
    masters = trainer.policy.parameters.masters.values()
    optimizer = held(trainer.policy.optimizer.tensors().values())

    def work():
        trainer.policy.log_probs(sequences, [batches[:1] for batches in steps[0].micro_batches])
        trainer.policy.train(sequences, steps)

    return {
        "parameters": held(masters),
        "optimizer": optimizer,
        "beside": peak_of(work),
        "gradients": held(master.grad for master in masters),
        "micro_batches": [
            [(sequences[i].prompt_length, len(sequences[i].loss_mask)) for i in members]
            for members in steps[0].micro_batches[data_rank(rank, spec.trainer.parallel)]
        ],
    }


def alone(folder, parallel, rank):
    """One of two ranks, the other left out; what a stage would have been told is made up."""
    names = {tensor.parameter for tensor in hf_tensors(read_architecture(Path(folder)))}
    gathering._owners = lambda *_: dict.fromkeys(names, 0)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
    spec = make_spec(folder, parallel, max_tokens_per_rank=300, non_finite="skip")
    trainer = make_rank(folder, spec, rank=rank, world_size=2, port=0)
    found = measure(trainer, spec, rank)
    trainer.close()
    return found


def together(folder, parallel, rank, port):
    spec = make_spec(folder, parallel, max_tokens_per_rank=300)
    trainer = make_rank(folder, spec, rank=rank, world_size=2, port=port)
    return measure(trainer, spec, rank)


def main(rank, world_size, port, cases, out):
    if world_size == 1:
        found = [[alone(*case, number) for number in range(2)] for case in cases]
    else:
        found = [together(*case, rank, port) for case in cases]
    (Path(out) / f"held-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]), sys.argv[5])
