"""Whole jobs: `rlrun launch quickstart` for a few steps, with native engines and with SGLang."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import rlrun.specs
from benchmarks.gpu.models import FOLDER, ON_GPU, model_folder
from benchmarks.gpu.results import Case, Goal, Measurement, Skipped
from rlrun.runner.doctor.gpu import start_sglang

QUICKSTART = Path(rlrun.specs.__file__).parent / "recipes" / "quickstart" / "model"
STEPS = 6 if ON_GPU else 2
SGLANG_PYTHON = os.environ.get("SGLANG_PYTHON", sys.executable)
"""The interpreter that has SGLang, if it is not this one."""
SGLANG = {
    "engine.python": SGLANG_PYTHON,
    "engine.sglang.attention_backend": "triton",  # others lack heads as narrow as the quickstart model's
    "engine.sglang.mem_fraction_static": "0.3",
}


EXACT = {
    "true_on_policy": "true",
    "trainer.flash_attention": "FA3",
    "trainer.dtype": "bfloat16",
    "engine.dtype": "bfloat16",
    "engine.sglang.mem_fraction_static": "0.3",
}
"""Keys of a job whose engines and trainer must have the same log-probs, to the last bit."""


def launch(engine: str, settings: Mapping[str, str], goals: tuple[Goal, ...], name: str = "") -> Measurement:
    """Runs the quickstart's first steps; its log-probs and the engines' must agree."""
    runs, name = FOLDER / "runs", name or engine
    overrides = {
        "name": name,
        "engine.type": engine,
        "runs_dir": str(runs),
        "cluster.gpus_per_node": str(int(ON_GPU)),
        "trainer.steps": str(STEPS),
        "eval.interval": "100",
        **({} if ON_GPU else {"rollout.batch_size": "4"}),
        **settings,
    }
    words = [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "benchmarks.gpu.launch", "launch", "quickstart", "--new", *words]
    log = runs / f"{name}.log"
    runs.mkdir(parents=True, exist_ok=True)
    start = time.perf_counter()
    with log.open("wb") as output:
        code = subprocess.run(command, stdout=output, stderr=output, check=False).returncode
    if code:
        raise RuntimeError(f"exit code {code}: {log.read_text(errors='replace').strip()[-500:]}")
    figures = {"seconds": time.perf_counter() - start, **figures_of(runs / name)}
    return Measurement(figures, (Goal("steps", "==", STEPS), *goals))


def figures_of(run: Path) -> dict[str, object]:
    """Returns the last step's metrics."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "train/loss" in line]
    last = steps[-1]
    return {
        "steps": len(steps),
        "log_prob_difference": max(step["train/train_rollout_logprob_abs_diff"] for step in steps),
        "largest_difference": max(step["train/train_rollout_logprob_abs_diff_max"] for step in steps),
        "reward": last["rollout/reward/mean"],
        **{name: value for name, value in last.items() if name.startswith("perf/")},
    }


def sglang() -> Measurement:
    """Runs the job on SGLang servers, whose weights come over CUDA IPC and which sleep while it trains."""
    need_sglang()
    # SGLang's kernels use TF32 and bfloat16 where the trainer has float32
    return launch("sglang", SGLANG, (Goal("log_prob_difference", "<=", 0.02),))


def exact() -> Measurement:
    """Runs the job with `true_on_policy` and a random Qwen3-0.6B, whose heads FlashAttention 3 takes."""
    if not ON_GPU or find_spec("sglang") is None or find_spec("flash_attn_interface") is None:
        raise Skipped("true_on_policy needs a Hopper GPU, and SGLang and flash_attn_3 in this environment")
    folder = model_folder("0.6B", "bfloat16")
    for file in QUICKSTART.glob("tokenizer*"):
        shutil.copy(file, folder)
    goal = Goal("largest_difference", "==", 0.0)
    return launch("sglang", EXACT | {"model.path": str(folder)}, (goal,), "exact")


def sglang_start() -> Measurement:
    """Starts the server that `rlrun doctor --gpu` starts."""
    need_sglang()
    answer = start_sglang(SGLANG_PYTHON, "cuda" if ON_GPU else "cpu")
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return Measurement(answer)


def need_sglang() -> None:
    if sys.executable == SGLANG_PYTHON and find_spec("sglang") is None:
        raise Skipped("SGLang is not installed in this environment, and SGLANG_PYTHON names no other")
    if not ON_GPU:
        raise Skipped("SGLang needs a GPU")


CASES: Mapping[str, Case] = {
    # float32 on both sides, which agree to rounding
    "native": partial(launch, "native", {}, (Goal("log_prob_difference", "<=", 1e-3),)),
    "SGLang start": sglang_start,
    "SGLang": sglang,
    "exact": exact,
}
