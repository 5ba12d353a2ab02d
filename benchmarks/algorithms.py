"""Every algorithm on one tiny task, each from its own spec: does it learn?

A random model of 0.1 M parameters writes up to 16 tokens, and the fewer the better: a reward of 0 for none,
-1 for 16 (`length`). What needs no rewards has the same aim in its own form: distillation has the model that
GRPO made for a teacher; SFT and DPO have short answers as demonstrations and as the preferred of two.

    python benchmarks/algorithms.py [--only NAME …] [--keep FOLDER]

Prints docs/algorithms.md's table. All jobs run in this process, without Ray: a minute or two on one core.
"""

import argparse
import json
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from rlrun.plugins.registry import build
from tests.local_job import run_local
from tests.tiny_models import make_tiny_model

HEAD = """
name = "{name}"
seed = 1
deterministic = true

[model]
path = "model"

[algorithm]
{algorithm}
"""
ROLLOUT = """
[data]
path = "prompts.jsonl"

[rollout]
batch_size = 8
samples_per_prompt = 4
max_prompt_tokens = 64
max_response_tokens = 16

[[rewards]]
type = "length"
max_tokens = 16
buffer = 16

[engine]
dtype = "float32"
max_running = 64
"""
PAIRS = """
[data]
path = "pairs.jsonl"
label_key = "good"
response_key = "good"
{rejected}
"""
LABELLED = """
[data]
path = "labelled.jsonl"
response_key = "response"
"""
LENGTHS = """
[rollout]
max_prompt_tokens = 64
max_response_tokens = 16
"""
TAIL = """
[trainer]
steps = {steps}
lr = {lr}
dtype = "float32"
{trainer}

[cluster]
threads = 1

[checkpoint]
export_hf = {export}
"""


@dataclass(frozen=True)
class Case:
    """One algorithm's spec, and the metric that tells whether it learns."""

    algorithm: str
    """The keys of `[algorithm]` after `type`."""
    trainer: str = ""
    more: str = ""
    """Further sections."""
    metric: str = "rollout/reward/mean"
    steps: int = 16
    lr: float = 3e-3
    export: bool = False


CASES = {
    "grpo": Case("", export=True),
    "dr_grpo": Case("", 'reduction = "dr_grpo"'),
    "dapo": Case("", 'reduction = "per_token"'),
    "gspo": Case("", "optimizer_steps = 2"),
    "cispo": Case(""),
    "rloo": Case(""),
    "remax": Case(""),
    "rae": Case(""),
    "dppo": Case(""),
    "sapo": Case("", "optimizer_steps = 2"),
    "gmpo": Case("", "optimizer_steps = 2"),
    "gspo_token": Case("", "optimizer_steps = 2"),
    "clip_cov": Case("low = 0.0", "optimizer_steps = 2"),
    "kl_cov": Case("fraction = 0.02", "optimizer_steps = 2"),
    "m2po": Case(""),
    "max_rl": Case(""),
    "opo": Case(""),
    "pass_at_k": Case(""),
    "gdpo": Case(""),
    "vespo": Case("", 'reduction = "per_token"\noptimizer_steps = 2'),
    "luspo": Case("", "optimizer_steps = 2"),
    "gpg": Case("", 'reduction = "per_token"'),
    "topr": Case("", "optimizer_steps = 2"),
    "gigpo": Case("", "optimizer_steps = 2"),
    "optimal_token_baseline": Case("", "optimizer_steps = 2"),
    "hierarchical_grpo": Case(""),
    "reinforce_plus_plus": Case('kl = { in_reward = { type = "k1", coef = 0.001 } }'),
    "reinforce_plus_plus_baseline": Case('kl = { in_reward = { type = "k2", coef = 0.001 } }'),
    "ppo": Case("lambd = 0.95", more="[critic]\nlr = 3e-3\nonly_steps = 2", steps=18),
    "on_policy_distillation": Case("", more='[teacher]\npath = "runs/grpo/model"', steps=24),
    "gkd": Case("", more='[teacher]\npath = "runs/grpo/model"', steps=24),
    "sft": Case("", "global_batch_size = 8", metric="train/loss"),
    "dpo": Case("", "global_batch_size = 8", metric="train/preferred_frac", lr=1e-3),
    "online_dpo": Case("", steps=32),
    "ipo": Case("", "global_batch_size = 8", metric="train/preferred_frac", lr=1e-3),
    "simpo": Case("", "global_batch_size = 8", metric="train/reward_margin", lr=1e-3),
    "orpo": Case("", "global_batch_size = 8", metric="train/log_odds_ratio", lr=1e-3),
    "bradley_terry": Case("", "global_batch_size = 8", metric="train/preferred_frac", lr=1e-3),
    "kto": Case("", "global_batch_size = 8", metric="train/kto_right_frac", lr=1e-3),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--keep", type=Path, help="work here, and leave everything")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        prepare(folder)
        print("| `type` | measured by | first 2 steps | last 2 steps | steps | seconds |")
        print("| --- | --- | --- | --- | --- | --- |", flush=True)
        for name in options.only:
            print(row(folder, name, CASES[name]), flush=True)


def prepare(folder: Path) -> None:
    """The model and the rows."""
    make_tiny_model(folder / "model")
    prompts = [{"prompt": f"say {number}", "label": ""} for number in range(64)]
    pairs = [{"prompt": f"say {n}", "good": "ok", "bad": f"no {n} no {n}"} for n in range(64)]
    # A prompt has a good and a bad response in turn, so that neighbours have different ones.
    labelled = [
        {"prompt": f"say {n // 2}", "response": f"no {n} no {n}" if n % 2 else "ok", "label": n % 2 == 0}
        for n in range(64)
    ]
    for name, rows in (("prompts", prompts), ("pairs", pairs), ("labelled", labelled)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))


def row(folder: Path, name: str, case: Case) -> str:
    """Run the job; its line of the table."""
    file = folder / f"{name}.toml"
    file.write_text(spec(name, case))
    start = time.perf_counter()
    lines = run_local(file, folder / "runs" / name).lines
    seconds = time.perf_counter() - start
    values = [line[case.metric] for line in lines if case.metric in line]
    first, last = mean(values[:2]), mean(values[-2:])
    return f"| `{name}` | `{case.metric}` | {first:.2f} | {last:.2f} | {case.steps} | {seconds:.0f} |"


def spec(name: str, case: Case) -> str:
    """Returns the spec of the job, as TOML."""
    head = HEAD.format(name=name, algorithm=f'type = "{name}"\n{case.algorithm}')
    needs = build("algorithms", name, {}).needs
    rows = (
        LABELLED
        if needs.labels
        else PAIRS.format(rejected='rejected_key = "bad"' if needs.reads_pairs else "")
    )
    body = ROLLOUT if needs.rollout else rows + LENGTHS
    export = str(case.export).lower()
    tail = TAIL.format(steps=case.steps, lr=case.lr, trainer=case.trainer, export=export)
    return "\n".join((head, body, case.more, tail))


def mean(values: list[float]) -> float:
    """Returns the mean over a few steps, because a single one is noisy."""
    return sum(values) / len(values)


if __name__ == "__main__":
    main()
