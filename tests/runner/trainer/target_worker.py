"""One rank of a job that rounds as SGLang's servers: `RANK WORLD_SIZE PORT FOLDER OUT`."""

import json
import sys
from pathlib import Path

import numpy as np

from rlrun.runner.batches.packing import all_micro_batches
from tests.runner.trainer.trainer_cases import make_rank, make_sequences, plan
from tests.sglang_cpu.server_kernels import server_kernels, target_spec


def measure(folder, rank=0, world_size=1, port=None):
    """Log-probs of this rank's sequences, by number, and the gradient's norm."""
    spec = target_spec(folder, {"fsdp": world_size}, max_tokens_per_rank=100)
    sequences = dict(enumerate(make_sequences(8)))
    with server_kernels():
        trainer = make_rank(folder, spec, rank=rank, world_size=world_size, port=port)
        steps = plan(list(sequences.values()), spec)
        log_probs = trainer.policy.log_probs(sequences, all_micro_batches(steps))
        (metrics,) = trainer.policy.train(sequences, steps)
        trainer.close()
    return log_probs, metrics["train/grad_norm"]


def main(rank, world_size, port, folder, out):
    log_probs, norm = measure(folder, rank, world_size, port)
    np.savez(
        Path(out) / f"{rank}.npz", norm=norm, **{str(number): each for number, each in log_probs.items()}
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]), sys.argv[5])
