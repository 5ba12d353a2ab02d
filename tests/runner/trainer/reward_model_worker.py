"""One rank of the test of reward models' layouts: `RANK WORLD_SIZE PORT CASES OUT`; the cases share one
process group.
"""

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np

from rlrun.runner.batches.packing import plan_steps
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec


def make_pairs():
    """Four pairs without margins."""
    sequences = make_sequences(8)
    return [dataclasses.replace(one, advantages=np.zeros_like(one.advantages)) for one in sequences]


def pairs_of(sequences, spec):
    """The plan of a step in which neighbours are a pair."""
    return plan_steps(
        sequences,
        optimizer_steps=1,
        reduction="per_sample_mean",
        max_batch_tokens=spec.trainer.max_tokens_per_rank,
        max_length=512,
        max_response_tokens=64,
        data_degree=spec.trainer.parallel.data_degree,
        share_prefixes=bool(spec.trainer.share_prefixes),
        together=True,
    )


def main():
    rank, world_size, port = (int(value) for value in sys.argv[1:4])
    found = {}
    for case in json.loads(sys.argv[4]):
        parallel = case["parallel"] if world_size > 1 else {}
        spec = make_spec(case["folder"], parallel, {"type": "bradley_terry", "center": 0.01})
        trainer = make_rank(case["folder"], spec, rank=rank, world_size=world_size, port=port)
        sequences = make_pairs()
        steps = pairs_of(sequences, spec)
        metrics = [trainer.policy.train(sequences, steps)[0] for _ in range(3)]
        found[case["name"]] = [{k: v for k, v in one.items() if k.startswith("train/")} for one in metrics]
    Path(sys.argv[5], f"{rank}.json").write_text(json.dumps(found))
    trainer.close()


if __name__ == "__main__":
    main()
