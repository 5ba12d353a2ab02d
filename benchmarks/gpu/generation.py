"""The native engine over HTTP: log-probs against transformers and against its own scores, and its speed."""

import json
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import torch

from benchmarks.gpu.models import DEVICE, ON_GPU, THREADS, model_folder, seconds_of
from benchmarks.gpu.parity import load_reference
from benchmarks.gpu.results import Case, Goal, Measurement
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer

KEY = "gpu-check"
VOCABULARY = 300
"""Token ids of prompts are below this, so that they exist in the tiny model too."""
SCORED = (10, 31, 47)
"""Lengths of the sequences that are scored."""
PROMPT, NEW = (256, 64) if ON_GPU else (8, 32)


@cache
def engine() -> NativeServer:
    """Returns an engine of the small model in this process, which `close` stops."""
    setup = EngineSetup(
        model_folder=str(model_folder("0.6B", "bfloat16")),
        dtype="bfloat16",
        max_running=256 if ON_GPU else 8,
        max_length=4096 if ON_GPU else 64,
        threads=THREADS,
        device="cuda" if ON_GPU else "cpu",
        api_key=KEY,
    )
    return NativeServer(setup)


@cache
def engine_url() -> str:
    return engine().start()


def close() -> None:
    """Stops the engine, whose threads would keep the process alive."""
    engine().stop()


def generate(prompts: Sequence[np.ndarray], **sampling: Any) -> list[dict[str, Any]]:
    """Returns the engine's answers to prompts that are sent together."""
    body = {
        "input_ids": [prompt.tolist() for prompt in prompts],
        "sampling_params": {"ignore_eos": True, **sampling},
        "return_logprob": True,
        "logprob_start_len": 0 if sampling["max_new_tokens"] == 0 else -1,
    }
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = Request(f"{engine_url()}/generate", json.dumps(body).encode(), headers)
    with urlopen(request, timeout=120) as response:
        answers: list[dict[str, Any]] = json.load(response)
    return answers


def score(sequences: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Returns the engine's log-probs of each sequence's tokens from the second one on."""
    answers = generate(sequences, max_new_tokens=0, temperature=1.0)
    return [
        np.array([entry[0] for entry in answer["meta_info"]["input_token_logprobs"][1:]], np.float32)
        for answer in answers
    ]


def against_transformers() -> Measurement:
    """Compares scores with transformers in float32, next to what transformers loses in bfloat16."""
    rng = np.random.default_rng(0)
    sequences = [rng.integers(2, VOCABULARY, length).astype(np.int32) for length in SCORED]
    model = load_reference(model_folder("0.6B", "bfloat16"))
    exact = np.concatenate([log_probs(model, sequence) for sequence in sequences])
    model.bfloat16()
    rounded = np.concatenate([log_probs(model, sequence) for sequence in sequences])
    gap = np.abs(np.concatenate(score(sequences)) - exact)
    figures = {
        "max_difference": float(gap.max()),
        "mean_difference": float(gap.mean()),
        "mean_difference_over_transformers": float(gap.mean() / np.abs(rounded - exact).mean()),
    }
    return Measurement(figures, (Goal("mean_difference_over_transformers", "<=", 2.0),))


@torch.no_grad()
def log_probs(model: Any, sequence: np.ndarray) -> np.ndarray:
    tokens = torch.from_numpy(sequence.astype(np.int64)).to(DEVICE)
    logits = model(input_ids=tokens[None]).logits[0, :-1].float()
    values = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
    return np.asarray(values.cpu())


def against_own_scores() -> Measurement:
    """Compares the log-probs of generated tokens with scores of the same tokens, which prefill computes."""
    rng = np.random.default_rng(1)
    prompts = [rng.integers(2, VOCABULARY, PROMPT).astype(np.int32) for _ in range(4)]
    answers = generate(prompts, max_new_tokens=NEW, temperature=1.0)
    gaps = []
    whole = [
        np.concatenate([prompt, np.array(answer["output_ids"], np.int32)])
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    for answer, scores in zip(answers, score(whole), strict=True):
        generated = np.array([entry[0] for entry in answer["meta_info"]["output_token_logprobs"]])
        gaps.append(np.abs(generated - scores[-len(generated) :]))
    gap = np.concatenate(gaps)
    figures = {"max_difference": float(gap.max()), "mean_difference": float(gap.mean())}
    return Measurement(figures, (Goal("mean_difference", "<=", 0.05),))


def speed(rows: int) -> Measurement:
    """Measures tokens per second with `rows` samples at a time, after a few tokens that warm up."""
    rows = rows if ON_GPU else 4
    rng = np.random.default_rng(2)
    prompts = [rng.integers(2, VOCABULARY, PROMPT).astype(np.int32) for _ in range(rows)]
    generate(prompts, max_new_tokens=4, temperature=1.0)
    prefill = seconds_of(lambda: generate(prompts, max_new_tokens=1, temperature=1.0))
    whole = seconds_of(lambda: generate(prompts, max_new_tokens=NEW, temperature=1.0))
    decoding = whole - prefill
    figures: dict[str, object] = {
        "rows": rows,
        "prefill_tokens_per_second": rows * PROMPT / prefill,
        "decode_tokens_per_second": rows * (NEW - 1) / decoding,
        "milliseconds_per_token": 1e3 * decoding / (NEW - 1),
    }
    if ON_GPU:
        figures["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return Measurement(figures)


CASES: Mapping[str, Case] = {
    "against transformers": against_transformers,
    "against its own scores": against_own_scores,
    "64 rows": partial(speed, 64),
    "256 rows": partial(speed, 256),
}
