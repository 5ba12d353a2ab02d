"""One rank against transformers in float32, document by document: log-probs and the gradients' norm."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.models import (
    DEVICE,
    ON_GPU,
    make_rank,
    make_sequences,
    make_spec,
    model_folder,
    pack_steps,
)
from benchmarks.gpu.results import Case, Goal, Measurement, Skipped
from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.contracts.carriers import TrainSequence, TrainStep

GOALS = {
    "float32": (
        Goal("max_difference", "<=", 1e-4),
        Goal("gradient_norm_ratio_off_by", "<=", 1e-3),
        Goal("repeats", "==", True),
    ),
    "bfloat16": (
        Goal("mean_difference_over_transformers", "<=", 1.5),
        Goal("gradient_norm_ratio_off_by", "<=", 5e-2),
        Goal("repeats", "==", True),
    ),
}
"""`mean_difference_over_transformers`: how far log-probs are from float32's, divided by how far those are
that transformers computes with a bfloat16 model. `repeats`: the same log-probs, bit for bit, when they are
computed again."""


def parity(name: str, dtype: str, *, share: bool = False) -> Measurement:
    """`share`: the sequences are two groups, whose prompts are computed once."""
    torch.backends.cuda.matmul.allow_tf32 = False
    folder = model_folder(name, dtype)
    spec = make_spec(folder, dtype=dtype, max_tokens_per_rank=2048, max_grad_norm=1e9, share_prefixes=share)
    rank = make_rank(spec)
    sequences = make_sequences(8, 20, 60, 300)
    if share:
        sequences = [with_prompt(sequence, index // 4) for index, sequence in enumerate(sequences)]
    [step] = steps = pack_steps(spec, sequences)
    log_probs = rank.policy.log_probs(sequences, all_micro_batches(steps))
    again = rank.policy.log_probs(sequences, all_micro_batches(steps))
    [metrics] = rank.policy.train(sequences, steps)
    rank.close()
    del rank
    model = load_reference(folder)
    expected, norm = log_probs_and_norm(model, sequences, step, spec.rollout.temperature)
    figures: dict[str, object] = {
        "max_difference": float(difference(log_probs, expected).max()),
        "mean_difference": float(difference(log_probs, expected).mean()),
        "gradient_norm": metrics["train/grad_norm"],
        "gradient_norm_ratio_off_by": abs(metrics["train/grad_norm"] / norm - 1),
        "repeats": not difference(log_probs, again).any(),
    }
    if dtype == "bfloat16":
        rounded, _ = log_probs_and_norm(model.bfloat16(), sequences, step, spec.rollout.temperature)
        mean = float(difference(rounded, expected).mean())
        figures["mean_difference_over_transformers"] = figures["mean_difference"] / mean
    return Measurement(figures, GOALS[dtype])


def with_prompt(sequence: TrainSequence, group: int) -> TrainSequence:
    """Returns the sequence with its group's prompt of 100 tokens."""
    prompt = np.random.default_rng(group).integers(2, 300, 100)
    response = sequence.tokens[sequence.prompt_length :]
    tokens = np.concatenate((prompt, response)).astype(np.int32)
    return replace(sequence, tokens=tokens, prompt_length=len(prompt))


def load_reference(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.to(DEVICE)


def log_probs_and_norm(
    model: Any, sequences: Sequence[TrainSequence], step: TrainStep, temperature: float
) -> tuple[dict[int, np.ndarray], float]:
    """Returns transformers' log-probs, and the norm of GRPO's gradient at a ratio of 1."""
    model.zero_grad()
    log_probs = {}
    for index, sequence in enumerate(sequences):
        tokens = torch.from_numpy(sequence.tokens.astype(np.int64)).to(DEVICE)
        logits = model(input_ids=tokens[None]).logits[0, sequence.prompt_length - 1 : -1]
        targets = tokens[sequence.prompt_length :, None]
        values = (logits.float() / temperature).log_softmax(-1).gather(1, targets)[:, 0]
        weights = torch.from_numpy(step.scale[index] * sequence.advantages * sequence.loss_mask).to(DEVICE)
        (-(weights * values).sum()).backward()
        log_probs[index] = values.detach().cpu().numpy()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return log_probs, float(torch.nn.utils.get_total_norm(gradients))


def difference(log_probs: Mapping[int, np.ndarray], others: Mapping[int, np.ndarray]) -> np.ndarray:
    """Returns the absolute differences of all tokens."""
    return np.concatenate([np.abs(values - others[index]) for index, values in log_probs.items()])


def gated_delta_net() -> Measurement:
    if not ON_GPU:
        raise Skipped("fla's kernels need a GPU")
    return parity("Next", "bfloat16")


CASES: Mapping[str, Case] = {
    "dense float32": partial(parity, "0.6B", "float32"),
    "dense bfloat16": partial(parity, "0.6B", "bfloat16"),
    "MoE bfloat16": partial(parity, "MoE", "bfloat16"),
    "MoE float32": partial(parity, "MoE", "float32"),
    "Gated DeltaNet": gated_delta_net,
    "shared prefixes": partial(parity, "0.6B", "bfloat16", share=True),
}
