"""One rank of the test of balancing: `RANK WORLD_SIZE PORT [FOLDER, EXPECTED, LAYOUTS] OUT`."""

import json
import sys
from pathlib import Path

import torch

from tests.runner.trainer.model.test_balancing import biases, same, spec_of, stepped
from tests.runner.trainer.trainer_cases import make_rank


def main(place, folder, expected, layouts):
    rank, world_size, port = place
    saved, after = torch.load(Path(expected) / "expected.pt", weights_only=False)
    for parallel in layouts:
        spec = spec_of(folder, parallel, moe={"balancing": "bias"})
        trainer = make_rank(folder, spec, rank=rank, world_size=world_size, port=port)
        stepped(trainer, 4)
        mine = biases(trainer)
        assert same(mine, {layer: after[layer] for layer in mine}), parallel
        trainer.load(Path(expected) / "step")
        assert same(biases(trainer), {layer: saved[layer] for layer in mine}), parallel
    trainer.close()


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:4]], *json.loads(sys.argv[4]))
