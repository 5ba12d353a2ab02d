"""One rank of the test of what is not finite: `RANK WORLD_SIZE PORT [FOLDER, LAYOUTS] OUT`."""

import dataclasses
import json
import sys

import numpy as np
import pytest
import torch

from rlrun.runner.trainer.optim.gradients import NonFiniteError
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan


def main(place, folder, layouts):
    rank, world_size, port = place
    first, *others = make_sequences()
    sequences = [dataclasses.replace(first, advantages=np.full_like(first.advantages, np.nan)), *others]
    for parallel in layouts:
        spec = make_spec(folder, parallel)
        trainer = make_rank(folder, spec, rank=rank, world_size=world_size, port=port)
        before = trainer.policy.parameters.host_copy()
        with pytest.raises(NonFiniteError, match="optimizer step 1: the loss is nan"):
            trainer.policy.train(sequences, plan(sequences, spec))
        after = trainer.policy.parameters.host_copy()
        assert all(torch.equal(after[name], before[name]) for name in before), parallel
    trainer.close()


if __name__ == "__main__":
    main([int(one) for one in sys.argv[1:4]], *json.loads(sys.argv[4]))
