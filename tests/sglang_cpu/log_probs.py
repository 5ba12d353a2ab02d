"""Log-probs as transformers computes them, to hold a server's against."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rlrun.runner.contracts.carriers import Generation


def model_log_probs(model: Path, prompt: np.ndarray, one: Generation) -> np.ndarray:
    """Returns the log-probs of a sample's tokens after `prompt`."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return log_probs_of(network, np.concatenate([prompt, one.tokens]), len(prompt))


def log_probs_of(network: torch.nn.Module, tokens: np.ndarray, prompt: int) -> np.ndarray:
    """Returns the log-probs of the tokens after the first `prompt`, by a model of transformers."""
    ids = torch.from_numpy(tokens).long()
    with torch.no_grad():
        logits = network(ids[None]).logits[0, prompt - 1 : -1]
    return logits.log_softmax(-1).gather(1, ids[prompt:, None])[:, 0].numpy()


def largest_difference(model: Path, prompt: np.ndarray, samples: Iterable[Generation]) -> float:
    """Returns the largest difference between the log-probs of samples and those of transformers."""
    return max(float(np.abs(model_log_probs(model, prompt, one) - one.log_probs).max()) for one in samples)
