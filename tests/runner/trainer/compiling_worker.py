"""One rank of the test of compiled layers: `RANK WORLD_SIZE PORT [FOLDER, LAYOUTS] OUT`."""

import json
import sys

import numpy as np
import pytest
from trainer_cases import make_rank, make_sequences, make_spec, plan

from rlrun.runner.batches.packing import all_micro_batches


def stepped(place, folder, parallel, *, compiled):
    """Log-probs before a step, and its gradient norm."""
    rank, world_size, port = place
    spec = make_spec(folder, parallel, compile=compiled)
    trainer, sequences = (
        make_rank(folder, spec, rank=rank, world_size=world_size, port=port),
        make_sequences(5),
    )
    steps = plan(sequences, spec)
    log_probs = trainer.log_probs(sequences, all_micro_batches(steps))
    (metrics,) = trainer.train(sequences, steps)
    return trainer, log_probs, metrics["train/grad_norm"]


def main(place, folder, layouts):
    for parallel in layouts:
        _, expected, norm = stepped(place, folder, parallel, compiled=False)
        trainer, found, own = stepped(place, folder, parallel, compiled=True)
        assert found.keys() == expected.keys()
        for i, values in found.items():
            np.testing.assert_allclose(values, expected[i], atol=1e-5, err_msg=str(parallel))
        assert own == pytest.approx(norm, rel=1e-5), parallel
    trainer.close()


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:4]], *json.loads(sys.argv[4]))
