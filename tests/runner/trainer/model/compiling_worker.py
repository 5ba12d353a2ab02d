"""One rank of the test of compiled layers: `RANK WORLD_SIZE PORT CASES OUT`."""

import json
import sys

import numpy as np
import pytest

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.planning.rank_layout import data_rank
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan


def stepped(place, folder, parallel, **trainer):
    """Log-probs before two optimizer steps, and what each step's loss and gradient norm were."""
    rank, world_size, port = place
    spec = make_spec(folder, parallel, **trainer)
    held = make_rank(folder, spec, rank=rank, world_size=world_size, port=port)
    sequences = make_sequences(6)
    steps = plan(sequences, spec, 2)
    own = data_rank(rank, spec.trainer.parallel)
    members = [i for step in steps for batch in step.micro_batches[own] for i in batch]
    sequences = {i: sequences[i] for i in members}
    log_probs = held.policy.log_probs(sequences, all_micro_batches(steps))
    found = [
        [metrics["train/loss"], metrics["train/grad_norm"]] for metrics in held.policy.train(sequences, steps)
    ]
    return held, log_probs, found


def main(place, cases):
    for folder, parallel, trainer in cases:
        _, expected, numbers = stepped(place, folder, parallel, **trainer)
        held, found, own = stepped(place, folder, parallel, compile=True, **trainer)
        case = str((parallel, trainer))
        assert found.keys() == expected.keys()
        for i, values in found.items():
            np.testing.assert_allclose(values, expected[i], atol=1e-5, err_msg=case)
        for ours, theirs in zip(own, numbers, strict=True):
            assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6), case
    held.close()


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:4]], json.loads(sys.argv[4]))
