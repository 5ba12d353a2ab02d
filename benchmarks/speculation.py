"""Speculative decoding of the native engine on a CPU: with drafts against without, in turns.

    python benchmarks/speculation.py [--batches 1 4 16 64] [--draft-tokens 8] [--model FOLDER]

Three kinds of answers: `sums`, those of the quickstart's model to its sums at temperature 1, 8 to each, as in
a GRPO step; `loops`, those of a random model at temperature 0, which repeat themselves; `noise`, those of the
same model at temperature 1, in which nothing repeats: what looking for drafts costs where there are none. One
JSON object per row; quote `ratio`, tokens per CPU-second with drafts / without, the median over the repeats.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from generation import make_model
from numpy.typing import NDArray
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rlrun.runner.contracts.carriers import GenerateRequest, Generation, Sampling
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer

QUICKSTART = Path(__file__).parents[1] / "rlrun/specs/recipes/quickstart/model"


def main() -> None:
    """Print one row for each kind of answers and batch size."""
    options = arguments()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        random_model = options.model or make_model(folder)
        for kind, model in (("sums", str(QUICKSTART)), ("loops", random_model), ("noise", random_model)):
            servers = [start(model, draft_tokens, options) for draft_tokens in (0, options.draft_tokens)]
            urls = [server.start() for server in servers]
            for batch in options.batches:
                print(json.dumps(asyncio.run(compare(kind, urls, batch, options))), flush=True)
            for server in servers:
                server.stop()


def arguments() -> argparse.Namespace:
    """Reads the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--draft-tokens", type=int, default=8)
    parser.add_argument(
        "--model", help="folder of a model for loops and noise; default: a random one of 5.8M"
    )
    parser.add_argument("--new", type=int, default=192, help="new tokens of loops and noise")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def start(model: str, draft_tokens: int, options: argparse.Namespace) -> NativeServer:
    """A server with drafts of so many tokens."""
    setup = EngineSetup(
        model, dtype=options.dtype, max_length=256, threads=options.threads, draft_tokens=draft_tokens
    )
    return NativeServer(setup)


async def compare(kind: str, urls: list[str], batch: int, options: argparse.Namespace) -> dict[str, object]:
    """The same requests to both servers, in turns; the first repeat warms up."""
    rates: list[list[float]] = [[], []]
    drafted: list[Generation] = []
    for repeat in range(options.repeats + 1):
        for turn in ((0, 1), (1, 0))[repeat % 2]:
            began = time.process_time()
            generations = await generate(urls[turn], requests(kind, batch, repeat, options))
            tokens = sum(len(generation.tokens) for generation in generations)
            rates[turn].append(tokens / (time.process_time() - began))
            drafted += generations if turn and repeat else []
    ratios = [ours / theirs for theirs, ours in zip(*rates, strict=True)][1:]
    proposed, right = (sum(getattr(g, name) for g in drafted) for name in ("drafted", "accepted"))
    total = sum(len(g.tokens) for g in drafted)
    return {
        "kind": kind,
        "batch": batch,
        "without": round(statistics.median(rates[0][1:])),
        "with": round(statistics.median(rates[1][1:])),
        "ratio": round(statistics.median(ratios), 2),
        "accept_rate": round(right / proposed, 2) if proposed else None,
        "tokens_per_pass": round(total / (total - right), 2),
    }


async def generate(url: str, batch: list[GenerateRequest]) -> list[Generation]:
    """The answers to one batch."""
    async with EngineClient(url, own=True) as client:
        return [generation for answer in await client.generate_batch(batch) for generation in answer]


def requests(kind: str, batch: int, repeat: int, options: argparse.Namespace) -> list[GenerateRequest]:
    """`batch` requests, 8 for each prompt."""
    prompts = [prompt_of(kind, repeat * batch + k // 8) for k in range(batch)]
    sampling = Sampling(
        max_new_tokens=64 if kind == "sums" else options.new, temperature=float(kind != "loops")
    )
    return [
        GenerateRequest(f"{repeat}-{k}", prompt, (1000 * repeat + k,), sampling)
        for k, prompt in enumerate(prompts)
    ]


def prompt_of(kind: str, number: int) -> NDArray[np.int32]:
    """The prompt of a number: a sum of four or five terms, or random tokens."""
    rng = np.random.default_rng(number)
    if kind != "sums":
        return rng.integers(300, 4000, 32).astype(np.int32)
    terms = rng.integers(10, 100, rng.integers(4, 6))
    signs = rng.choice(["+", "-"], len(terms) - 1)
    text = str(terms[0]) + "".join(f" {sign} {term}" for sign, term in zip(signs, terms[1:], strict=True))
    message = f"State the final answer to the following arithmetic problem: {text} ="
    ids = _tokenizer().apply_chat_template(
        [{"role": "user", "content": message}], add_generation_prompt=True, return_dict=False
    )
    return np.array(ids, np.int32)


@cache
def _tokenizer() -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(QUICKSTART)


if __name__ == "__main__":
    main()
