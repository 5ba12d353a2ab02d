"""One rank of the memory test: `RANK WORLD_SIZE PORT CASES OUT`; writes the bytes it holds in each layout."""

import json
import sys
from pathlib import Path

from torch.distributed.tensor import DTensor
from trainer_cases import make_rank, make_sequences, make_spec, plan


def held(tensors):
    local = [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def main(rank, world_size, port, cases, out):
    found = []
    for folder, parallel in cases:
        spec = make_spec(folder, parallel)
        trainer = make_rank(folder, spec, rank=rank, world_size=world_size, port=port)
        sequences = make_sequences()
        trainer.train(sequences, plan(sequences, spec))
        masters = trainer._parameters.masters.values()
        found.append((held(masters), held(trainer._optimizer.tensors().values())))
    (Path(out) / f"held-{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]), sys.argv[5])
