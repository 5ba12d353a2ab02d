"""rlrun and TRL's GRPOTrainer side by side: same weights, prompts, sampling, update rule and hardware.

    python benchmarks/trl_grpo.py --mean 58 --max-new 256        # lengths vary
    python benchmarks/trl_grpo.py                                # every response has 128 tokens
    python benchmarks/trl_grpo.py --rank 8                       # both train adapters of rank 8
    python benchmarks/trl_grpo.py --prompts 4 --terms 170        # long prompts; --separate: not shared

Needs `pip install -e '.[run,bench]'`. Each side runs in a process of its own, in turn, `--rounds` times; the
medians of the steps after the first are compared. The floor is what the machine's matrix product could do: 2N
FLOPs for a generated token, 6N for a trained one, at the measured rate of the dtype. Its share is told twice:
with the prompt of every sample, and with the prompts that a group shares counted once.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from floor import matmul_rate
from process_memory import run_measured
from workload import Workload, write_model

PHASES = ("generation", "log_probs", "update", "total")
SHARES = ("share_of_floor", "share_of_shared_floor")
SIDE_SECONDS = 3600.0
"""Deadline of one side."""


def main() -> None:
    """Run both sides and print one JSON object, with a table on standard error."""
    args = parse_arguments()
    work = Workload(**{f.name: getattr(args, f.name) for f in fields(Workload) if hasattr(args, f.name)})
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model(Path(scratch) / "model", work)
        sides: dict[str, list[dict[str, Any]]] = {"trl": [], "rlrun": []}
        for number in range(args.rounds):
            name = f"bench-{number}"
            sides["rlrun"].append(run_rlrun(folder, work, Path(scratch), name, share=not args.separate))
            sides["trl"].append(run_trl(folder, work))
    report = compare(sides, work, matmul_rate(getattr(torch, work.dtype), work.threads))
    print_table(report)
    print(json.dumps(report, indent=1))


def parse_arguments() -> argparse.Namespace:
    """Every field of Workload is an option."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("prompts", "samples", "max_new", "mean", "steps", "threads", "rank", "terms"):
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=int, default=getattr(Workload, name))
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default=Workload.dtype)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--separate", action="store_true", help="trainer.share_prefixes = false")
    return parser.parse_args()


def run_trl(folder: Path, work: Workload) -> dict[str, Any]:
    """TRL in a process of its own."""
    script = Path(__file__).with_name("trl_side.py")
    command = [sys.executable, str(script), str(folder), json.dumps(work.as_dict())]
    output, memory = run_measured(command, environment(work), SIDE_SECONDS)
    return {**json.loads(output.splitlines()[-1]), "peak_memory_gib": memory}


def run_rlrun(folder: Path, work: Workload, scratch: Path, name: str, *, share: bool) -> dict[str, Any]:
    """`rlrun launch` on a spec with the same settings; its figures come from the run's metrics.jsonl."""
    spec = scratch / "bench.toml"
    spec.write_text(rlrun_spec(folder, work, scratch))
    command = [sys.executable, "-m", "rlrun", "launch", str(spec), "--name", name]
    command += [] if share else ["--set", "trainer.share_prefixes=false"]
    _, memory = run_measured(command, environment(work), SIDE_SECONDS)
    lines = (scratch / "runs" / name / "metrics.jsonl").read_text().splitlines()
    steps = [row for row in map(json.loads, lines) if "perf/step_time" in row][1:]
    return {**summarise([rlrun_step(row, work) for row in steps]), "peak_memory_gib": memory}


def rlrun_spec(folder: Path, work: Workload, scratch: Path) -> str:
    """GRPO as TRL is set up: on-policy, one optimizer step, per-sample mean, no KL, constant rate."""
    minimum = 0 if work.mean else work.max_new
    task = ", ".join(f"{key} = {value}" for key, value in work.task.items())
    lora = f"[trainer.lora]\nrank = {work.rank}\nalpha = {2 * work.rank}" if work.rank else ""
    return f"""
runs_dir = "{scratch}/runs"
seed = 1
[model]
path = "{folder}"
[data]
type = "reasoning_gym"
task = "chain_sum"
size = {work.prompts * (work.steps + 2)}
seed = 42
task_params = {{ {task} }}
[rollout]
batch_size = {work.prompts}
samples_per_prompt = {work.samples}
max_response_tokens = {work.max_new}
min_response_tokens = {minimum}
stop_token_ids = {work.stop_tokens}
[[rewards]]
type = "reasoning_gym"
[algorithm]
type = "grpo"
[trainer]
steps = {work.steps}
lr = {work.lr}
betas = [0.9, 0.999]
weight_decay = 0.0
dtype = "{work.dtype}"
{lora}
[engine]
dtype = "{work.dtype}"
[cluster]
threads = {work.threads}
"""


def rlrun_step(row: dict[str, float], work: Workload) -> dict[str, float]:
    """One line of metrics.jsonl in the terms of the comparison."""
    samples = work.prompts * work.samples
    return {
        "generation": row["perf/rollout_time"],
        "log_probs": row.get("perf/log_prob_time", 0.0),
        "update": row["perf/train_time"],
        "weight_sync": row["perf/weight_sync_time"],
        "total": row["perf/step_time"],
        "sync_bytes": row["perf/weight_sync_bytes"],
        "outside": row["perf/overhead_time"] / row["perf/step_time"],
        "samples": samples,
        "response_len": row["rollout/response_len/mean"],
        "prompt_len": (row["train/tokens"] - row["train/response_tokens"]) / samples,
    }


def summarise(steps: list[dict[str, float]]) -> dict[str, Any]:
    """Returns the medians over all steps."""
    return {key: statistics.median(step[key] for step in steps) for key in steps[0]}


def environment(work: Workload) -> dict[str, str]:
    """Threads set before the interpreter starts; no hub."""
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return {**os.environ, **offline, "OMP_NUM_THREADS": str(work.threads)}


def compare(sides: dict[str, list[dict[str, Any]]], work: Workload, rate: float) -> dict[str, Any]:
    """Medians over rounds, samples a second, the ratio, and each side's share of the machine's floor."""
    report: dict[str, Any] = {"workload": work.as_dict(), "matmul_gflops": round(rate / 1e9, 1)}
    parameters = parameter_count(work)
    for side, rounds in sides.items():
        figures = summarise(rounds)
        generated = figures["samples"] * figures["response_len"]
        figures["samples_per_second"] = figures["samples"] / figures["total"]
        for name, prompts in zip(SHARES, (figures["samples"], work.prompts), strict=True):
            trained = generated + prompts * figures["prompt_len"]
            figures[name] = (2 * generated + 6 * trained) * parameters / rate / figures["total"]
        report[side] = {key: round(value, 4) for key, value in figures.items()}
    report["speedup"] = round(report["rlrun"]["samples_per_second"] / report["trl"]["samples_per_second"], 2)
    return report


def parameter_count(work: Workload) -> int:
    """Matrix parameters that a token passes through, the head included."""
    attention = work.hidden * (4 + 2 * 2) * 64 + 4 * 64 * work.hidden
    layer = attention + 3 * work.hidden * 3 * work.hidden
    return work.layers * layer + work.vocab * work.hidden


def print_table(report: dict[str, Any]) -> None:
    """Seconds a step, by phase."""
    lines = [f"{'seconds a step':<22}{'TRL':>10}{'rlrun':>10}{'ratio':>8}"]
    for phase in PHASES:
        trl, ours = report["trl"][phase], report["rlrun"][phase]
        lines.append(
            f"{phase:<22}{trl:>10.3f}{ours:>10.3f}" + (f"{trl / ours:>8.1f}" if ours else f"{'–':>8}")
        )
    for name in ("samples_per_second", *SHARES, "response_len", "peak_memory_gib"):
        lines.append(f"{name:<22}{report['trl'][name]:>10.3f}{report['rlrun'][name]:>10.3f}")
    print("\n".join(lines), file=sys.stderr)


if __name__ == "__main__":
    main()
