"""The price of `true_on_policy` on a CPU: the same training step and the same decoding, without and with it.

    python benchmarks/true_on_policy.py [--size s|m|l] [--dtype float32|bfloat16] [--rounds 5] [--rows 64]

Both sides hold the same weights and take turns in one process, so that a busy machine slows both. Prints
JSON: medians of the CPU seconds of a training step (forward, backward, optimizer) and of decoding, and
`price`, the quotient with / without.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from trainer_step import VOCABULARY, make_model, make_sequences

from rlrun.runner.batches.packing import plan_steps
from rlrun.runner.contracts.carriers import TrainerSetup
from rlrun.runner.engines.native.engine.loading import load
from rlrun.runner.engines.native.engine.requests import SampleInProgress, SamplingParams, group_samples
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.kernels.operators import set_order
from rlrun.runner.trainer.roles.rank import TrainerRank
from tests.resolved_specs import resolved

BUDGET, PROMPT, NEW = 4096, 64, 96


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=VOCABULARY, default="s")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--documents", type=int, default=32)
    parser.add_argument("--rows", type=int, default=64)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        make_model(Path(folder), options.size)
        results = {"train": train_times(folder, options), "decode": decode_times(folder, options)}
    for result in results.values():
        result["price"] = round(result["with"] / result["without"], 2)
    print(json.dumps(vars(options) | results))


def train_times(folder: str, options: argparse.Namespace) -> dict[str, float]:
    """Returns the median CPU seconds of a training step."""
    spec = resolved(
        {
            "model": {"path": folder},
            "data": {},
            "engine": {"dtype": options.dtype},
            "trainer": {"steps": 1, "dtype": options.dtype, "max_tokens_per_rank": BUDGET},
        }
    )
    sequences = make_sequences(options.documents, VOCABULARY[options.size])
    steps = plan_steps(
        sequences,
        optimizer_steps=1,
        reduction=spec.trainer.reduction,
        max_batch_tokens=BUDGET,
        max_length=1024,
        max_response_tokens=1024,
        data_degree=1,
    )
    setup = TrainerSetup(
        spec_json=spec.model_dump_json(),
        model_folder=folder,
        rank=0,
        device="cpu",
        world_size=1,
        master_addr="127.0.0.1",
        master_port=1,
        threads=1,
        optimizer_steps=100,
    )
    rank = TrainerRank(setup)

    def step(exactly: bool) -> Callable[[], object]:
        def run() -> object:
            set_order(value=exactly)
            return rank.policy.train(sequences, steps)

        return run

    return in_turns(step(False), step(True), options.rounds)


def decode_times(folder: str, options: argparse.Namespace) -> dict[str, float]:
    """Returns the median CPU seconds of `rows` samples, 8 of each prompt."""

    def generation(exactly: bool) -> Callable[[], object]:
        set_order(value=exactly)
        scheduler = load(
            EngineSetup(folder, dtype=options.dtype, max_running=options.rows, max_length=256)
        ).scheduler
        rng = np.random.default_rng(0)
        prompts = [rng.integers(1, 4000, PROMPT).astype(np.int32) for _ in range(-(-options.rows // 8))]

        def run() -> None:
            samples = [
                SampleInProgress(
                    str(i), prompts[i // 8], SamplingParams(max_new_tokens=NEW, ignore_eos=True), i
                )
                for i in range(options.rows)
            ]
            scheduler.add(group_samples(samples))
            while scheduler.busy:
                scheduler.step()

        return run

    return in_turns(generation(False), generation(True), options.rounds)


def in_turns(without: Callable[[], object], with_it: Callable[[], object], rounds: int) -> dict[str, float]:
    """Returns the medians of both, after a round that does not count."""
    times: dict[str, list[float]] = {"without": [], "with": []}
    for _ in range(rounds + 1):
        for name, run in (("without", without), ("with", with_it)):
            started = time.process_time()
            run()
            times[name].append(time.process_time() - started)
    return {name: round(statistics.median(values[1:]), 4) for name, values in times.items()}


if __name__ == "__main__":
    main()
