"""A training step with shared prefixes against the same step without: `benchmarks/trainer_step.py --shared`.

Both sides are rlrun's trainer with the same weights and sequences, and take turns in one process; a group is
one micro-batch. For each shape of a group: the seconds of CPU time of a step (forward, backward and
optimizer) and of a pass for log-probs (the least of the repetitions); the speed-up; two bounds of it, the
ratio of the tokens and the ratio of the work (matrix products and attention, the head on response tokens in
both); and how far log-probs and gradients differ.
"""

import argparse
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from trainer_step import SIZES, VOCABULARY

from rlrun.runner.batches.packing import plan_steps
from rlrun.runner.contracts.carriers import TrainerSetup, TrainSequence, TrainStep
from rlrun.runner.trainer.roles.rank import TrainerRank
from tests.resolved_specs import resolved

GROUPS = ("256+256x8", "1024+256x8", "1024+1024x8")


class Group(NamedTuple):
    """Samples of one prompt."""

    prompt: int
    response: int
    samples: int

    @classmethod
    def of(cls, text: str) -> "Group":
        """Reads prompt + response x samples: `1024+256x8`."""
        prompt, response, samples = map(int, re.fullmatch(r"(\d+)\+(\d+)x(\d+)", text).groups())
        return cls(prompt, response, samples)

    def sequences(self, vocabulary: int) -> list[TrainSequence]:
        """Returns the samples, with random tokens."""
        rng = np.random.default_rng(0)
        prompt = rng.integers(0, vocabulary, self.prompt)
        return [
            TrainSequence(
                tokens=np.concatenate((prompt, rng.integers(0, vocabulary, self.response))).astype(np.int32),
                prompt_length=self.prompt,
                loss_mask=np.ones(self.response, np.float32),
                advantages=np.full(self.response, rng.normal(), np.float32),
                rollout_log_probs=np.full(self.response, -np.log(vocabulary), np.float32),
                execution=str(sample),
            )
            for sample in range(self.samples)
        ]


class Side:
    """The trainer with shared prefixes, or without."""

    def __init__(self, folder: Path, options: argparse.Namespace, *, share: bool) -> None:
        trainer = {"steps": 1, "dtype": options.dtype, "lr": 1e-6, "share_prefixes": share}
        spec = resolved({"model": {"path": str(folder)}, "data": {}, "trainer": trainer})
        setup = TrainerSetup(
            spec.model_dump_json(), str(folder), 0, "cpu", 1, "127.0.0.1", 1 + share, options.threads, 10**6
        )
        self.rank, self.share = TrainerRank(setup), share

    def steps(self, sequences: list[TrainSequence]) -> list[TrainStep]:
        """Returns one optimizer step with one micro-batch."""
        return plan_steps(
            sequences,
            optimizer_steps=1,
            reduction="per_sample_mean",
            max_batch_tokens=10**6,
            max_length=4096,
            max_response_tokens=4096,
            data_degree=1,
            micro_batch_size=len(sequences),
            share_prefixes=self.share,
        )

    def train(self, sequences: list[TrainSequence], steps: list[TrainStep]) -> float:
        """Returns the CPU seconds of a step."""
        start = time.process_time()
        self.rank.policy.train(sequences, steps)
        return time.process_time() - start

    def log_probs(self, sequences: list[TrainSequence], steps: list[TrainStep]) -> tuple[float, Any]:
        """Returns the CPU seconds of a pass for log-probs, and them."""
        start = time.process_time()
        values = self.rank.policy.log_probs(sequences, steps[0].micro_batches)
        return time.process_time() - start, np.concatenate([values[i] for i in range(len(sequences))])


def compare(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Returns the options and the figures of every group of `options.shared`."""
    torch.set_num_threads(options.threads)
    sides = {"separate": Side(folder, options, share=False), "shared": Side(folder, options, share=True)}
    groups = [Group.of(text) for text in options.shared or GROUPS]
    return {**vars(options), "results": [measure(sides, group, options) for group in groups]}


def measure(sides: dict[str, Side], group: Group, options: argparse.Namespace) -> dict[str, Any]:
    sequences = group.sequences(VOCABULARY[options.size])
    steps = {name: side.steps(sequences) for name, side in sides.items()}
    seconds: dict[str, dict[str, list[float]]] = {name: {"step": [], "log_probs": []} for name in sides}
    values, gradients = {}, {}
    for _ in range(options.repeat):
        for name, side in sides.items():
            side.rank.policy.optimizer.zero_grad()
            spent, values[name] = side.log_probs(sequences, steps[name])
            seconds[name]["log_probs"].append(spent)
            seconds[name]["step"].append(side.train(sequences, steps[name]))
            masters = side.rank.policy.parameters.masters
            gradients[name] = {key: master.grad.clone() for key, master in masters.items()}
    least = {
        name: {part: round(min(own), 4) for part, own in parts.items()} for name, parts in seconds.items()
    }
    bounds = bounds_of(group, options.size)
    speed_up = least["separate"]["step"] / least["shared"]["step"]
    return {
        **group._asdict(),
        "seconds": least,
        "speed_up": round(speed_up, 3),
        "log_probs_speed_up": round(least["separate"]["log_probs"] / least["shared"]["log_probs"], 3),
        **{f"bound_of_{name}": round(bound, 3) for name, bound in bounds.items()},
        **{f"share_of_{name}_bound": round(speed_up / bound, 3) for name, bound in bounds.items()},
        "log_probs_differ": float(np.abs(values["shared"] - values["separate"]).max()),
        "gradients_differ": max(
            float((gradient - gradients["separate"][name]).abs().max())
            for name, gradient in gradients["shared"].items()
        ),
    }


def bounds_of(group: Group, name: str) -> dict[str, float]:
    """Returns how much faster the step could be, by its tokens and by its floating-point operations."""
    prompt, response, samples = group
    size = SIZES[name]
    heads, hidden = size["num_attention_heads"], size["hidden_size"]
    linear = hidden * (3 * size["intermediate_size"] + 64 * 3 * heads) * size["num_hidden_layers"]
    head = hidden * VOCABULARY[name] * samples * response
    pair = 64 * heads * size["num_hidden_layers"]  # scores and outputs, of which causal attention needs half

    def work(tokens: int, pairs: int) -> int:
        return linear * tokens + head + pair * pairs

    separate, shared = samples * (prompt + response), prompt + samples * response
    branches = prompt**2 + samples * ((prompt + response) ** 2 - prompt**2)
    return {
        "tokens": separate / shared,
        "work": work(separate, samples * (prompt + response) ** 2) / work(shared, branches),
    }
