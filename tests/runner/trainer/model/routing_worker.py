"""One rank of the routing test: `RANK WORLD_SIZE PORT [FOLDER, EXPECTED, LAYOUTS] OUT`."""

import json
import sys

import numpy as np
import pytest
import torch

from tests.runner.trainer.model.test_routing import CHOSEN, noted, replayed, spec_of, turn_routers
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, plan


def agree(ours, theirs):
    """Where this rank has the layer; others are -1. The order of a token's experts is free."""
    ours, theirs = (one.reshape(len(one), -1, CHOSEN) for one in (ours, theirs))
    mine = ours[0, :, 0] >= 0
    assert mine.any()
    return np.array_equal(np.sort(ours[:, mine], -1), np.sort(theirs[:, mine], -1))


def main(place, folder, expected, layouts):
    rank, world_size, port = place
    experts, told, norm = torch.load(expected, weights_only=False)
    for parallel in layouts:
        for checkpointing in ("none", "full") if "pipeline" in parallel else ("none",):
            spec = spec_of(folder, parallel, activation_checkpointing=checkpointing)
            trainer, sequences = (
                make_rank(folder, spec, rank=rank, world_size=world_size, port=port),
                make_sequences(),
            )
            steps = plan(sequences, spec)
            _, own = noted(trainer, sequences, steps)
            assert all(agree(own[i], experts[i]) for i in own), parallel
            turn_routers(trainer)
            log_probs, taken = replayed(trainer, sequences, {i: experts[i] for i in own}, steps)
            assert all(agree(taken[i], experts[i]) for i in own), parallel
            for i, values in log_probs.items():
                np.testing.assert_allclose(values, told[i], atol=1e-5, err_msg=str(parallel))
            trainer.policy._replay._noted = own
            (metrics,) = trainer.policy.train(
                sequences if len(own) == len(sequences) else {i: sequences[i] for i in own}, steps
            )
            assert metrics["train/grad_norm"] == pytest.approx(norm, rel=1e-4), parallel
    trainer.close()


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:4]], *json.loads(sys.argv[4]))
