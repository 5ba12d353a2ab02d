"""One rank of the memory test: `RANK WORLD_SIZE PORT CASES OUT`; writes the bytes it holds in each layout."""

import itertools
import json
import sys
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from trainer_cases import make_rank, make_sequences, make_spec, plan

from rlrun.runner.trainer.layout import data_rank


def held(tensors):
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def peak_of(work):
    """The most bytes that torch's CPU allocator had given out during `work`, over what it had before."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as found:
        work()
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(itertools.accumulate(changes))


def measure(folder, parallel, rank, world_size, port):
    spec = make_spec(folder, parallel, max_tokens_per_rank=300)
    trainer = make_rank(folder, spec, rank=rank, world_size=world_size, port=port)
    sequences = make_sequences(30)
    steps = plan(sequences, spec)
    masters = trainer._parameters.masters.values()
    optimizer = held(trainer._learner.optimizer.tensors().values())

    def work():
        trainer.log_probs(sequences, [batches[:1] for batches in steps[0].micro_batches])
        trainer.train(sequences, steps)

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


def main(rank, world_size, port, cases, out):
    found = [measure(folder, parallel, rank, world_size, port) for folder, parallel in cases]
    (Path(out) / f"held-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]), sys.argv[5])
