"""Generation on a CPU: the native engine, over HTTP as in a job, against transformers' generate.

    python benchmarks/generation.py [--dtype bfloat16] [--batches 1 16 64 256] [--model FOLDER]

Both sample at temperature 1 from the whole vocabulary, without a stop token. A batch is B samples of B/8
prompts, 8 of each (one prompt for B < 8). `ragged` rows give sample k of 8 a budget of (k + 1)/8 of the new
tokens: transformers' generate decodes every row to the end of the longest, the engine drops finished ones.
One JSON object a row; quote `ratio` (tokens per CPU-second, native / transformers), which holds better across
machines than the figures.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer

SHAPE = {
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "intermediate_size": 768,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
"""5.8M parameters."""


def main() -> None:
    """Print one row for each batch size and kind of lengths."""
    options = arguments()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        path = options.model or make_model(folder)
        dtype = getattr(torch, options.dtype)
        peer = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="sdpa").eval()
        length = options.prompt + options.new
        server = NativeServer(
            EngineSetup(path, dtype=options.dtype, max_length=length, threads=options.threads)
        )
        url = server.start()
        for batch in options.batches:
            for ragged in (False, True) if batch >= 8 else (False,):
                budgets = lengths(batch, options.new, ragged)
                native = asyncio.run(measure_native(url, budgets, options))
                theirs = measure_transformers(peer, budgets, options)
                row = {"dtype": options.dtype, "batch": batch, "ragged": ragged, "native": native}
                row |= {"transformers": theirs, "ratio": round(native / theirs, 2)}
                print(json.dumps(row), flush=True)
        server.stop()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--model", help="folder of a model; default: a random one of 5.8M parameters")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=128, help="new tokens")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    return parser.parse_args()


def make_model(folder: str) -> str:
    """A random model in Hugging Face format."""
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(Qwen3Config(**SHAPE, eos_token_id=None)).save_pretrained(folder)
    return folder


def lengths(batch: int, new: int, ragged: bool) -> list[int]:
    """New tokens of each sample."""
    return [new * (k % 8 + 1) // 8 if ragged else new for k in range(batch)]


async def measure_native(url: str, budgets: list[int], options: argparse.Namespace) -> float:
    """Tokens per CPU-second through the client, JSON and HTTP included."""
    async with EngineClient(url, own=True) as client:
        rates = []
        for repeat in range(options.repeats + 1):
            rng = np.random.default_rng(repeat)
            requests, start = [], 0
            while start < len(budgets):
                prompt = rng.integers(300, 4000, options.prompt).astype(np.int32)
                for sample in range(start, min(start + 8, len(budgets))):
                    sampling = Sampling(max_new_tokens=budgets[sample])
                    requests.append(GenerateRequest(f"{repeat}-{sample}", prompt, (sample,), sampling))
                start += 8
            began = time.process_time()
            answers = await client.generate_batch(requests)
            tokens = sum(len(generation.tokens) for answer in answers for generation in answer)
            assert tokens == sum(budgets)
            rates.append(tokens / (time.process_time() - began))
        return median(rates)


def measure_transformers(model: torch.nn.Module, budgets: list[int], options: argparse.Namespace) -> float:
    """The same by generate, which runs every row to the longest budget; only what was asked for counts."""
    settings = GenerationConfig(
        max_new_tokens=max(budgets), do_sample=True, top_k=0, pad_token_id=0, disable_compile=True
    )
    generate: Callable[..., torch.Tensor] = model.generate
    rates = []
    for _ in range(options.repeats + 1):
        rows = -(-len(budgets) // 8)
        prompts = torch.randint(300, 4000, (rows, options.prompt)).repeat_interleave(8, 0)[: len(budgets)]
        began = time.process_time()
        with torch.no_grad():
            generate(input_ids=prompts, attention_mask=torch.ones_like(prompts), generation_config=settings)
        rates.append(sum(budgets) / (time.process_time() - began))
    return median(rates)


def median(rates: list[float]) -> float:
    """Of all but the first, which warms up."""
    return round(statistics.median(rates[1:]), 1)


if __name__ == "__main__":
    main()
