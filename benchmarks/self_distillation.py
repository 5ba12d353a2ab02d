"""A model that teaches itself: with a hint in its prompt it knows the answer, and learns to give it without.

Each prompt names one of ten words' numbers. The model has learnt by SFT to repeat the answer that a hint
gives, and to guess without one. Then `[teacher]` is this model with the hint (docs/distillation.md), and the
policy trains without any. The reward is only measured, except with `--solutions`, where the teacher is told
a successful answer of the same group in place of the label.

    python benchmarks/self_distillation.py [--keep FOLDER]

Prints docs/distillation.md's table. All jobs run in this process, without Ray: some minutes on one core.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.local_job import run_local
from tests.tiny_models import make_tiny_model

COMMON = """
seed = 1
deterministic = true
cluster = { threads = 1 }
"""
SFT = """
model = { path = "random" }
data = { path = "sft.jsonl", response_key = "response", apply_chat_template = false }
algorithm = { type = "sft" }
rollout = { max_prompt_tokens = 40, max_response_tokens = 4 }
trainer = { steps = 400, lr = 3e-3, dtype = "float32", global_batch_size = 64 }
"""
SELF = """
model = { path = "base/model" }
data = { path = "questions.jsonl", apply_chat_template = false }
engine = { dtype = "float32", max_running = 64 }
rewards = [{ type = "exact_match" }]
checkpoint = { export_hf = false }

[rollout]
batch_size = 10
samples_per_prompt = 8
max_prompt_tokens = 40
max_response_tokens = 4

[trainer]
steps = 40
lr = 1e-3
dtype = "float32"
"""
HINT = 'prompt = "hint {label}. {prompt}"'
CASES = {
    "gkd, initial": ('type = "gkd"', f'weights = "initial"\n{HINT}'),
    "gkd, average": ('type = "gkd"', f'weights = "average"\n{HINT}'),
    "gkd, current": ('type = "gkd"', f'weights = "current"\n{HINT}'),
    "on_policy_distillation, initial": ('type = "on_policy_distillation"', f'weights = "initial"\n{HINT}'),
    "gkd, initial, {solution}": (
        'type = "gkd"',
        'weights = "initial"\nprompt = "hint {solution}. {prompt}"',
    ),
}


def make_base(folder: Path) -> None:
    """Trains the model that every job starts from: it repeats the answer of a hint, and guesses without."""
    make_tiny_model(folder / "random", num_hidden_layers=3, hidden_size=64)
    draw, rows = random.Random(0), []
    for number in range(4000):
        question, answer = draw.randrange(10), draw.randrange(10)
        hint = f"hint {answer}. " if number % 2 else ""
        rows.append({"prompt": f"{hint}key {question} =", "response": f"{answer}"})
    (folder / "sft.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    questions = [{"prompt": f"key {n} =", "label": str((7 * n + 3) % 10)} for n in range(10)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    (folder / "sft.toml").write_text(COMMON + SFT)
    run_local(folder / "sft.toml", folder / "base")


def main() -> None:
    """Runs the cases and prints their table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keep", type=Path, help="keep the models and the runs in this folder")
    parser.add_argument("--only", nargs="*", default=list(CASES), choices=list(CASES))
    keep = (arguments := parser.parse_args()).keep
    with tempfile.TemporaryDirectory() as temporary:
        folder = keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "base/model").is_dir():
            make_base(folder)
        print("| teacher | step 1 | 10 | 20 | 30 | 40 | seconds |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for number, name in enumerate(arguments.only):
            algorithm, teacher = CASES[name]
            spec = folder / f"case-{number}.toml"
            spec.write_text(f"{COMMON}{SELF}\n[algorithm]\n{algorithm}\n\n[teacher]\n{teacher}\n")
            started = time.perf_counter()
            lines = run_local(spec, folder / f"run-{number}-{int(time.time())}").lines
            rewards = [line["rollout/reward/mean"] for line in lines]
            shown = " | ".join(f"{rewards[step - 1]:.2f}" for step in (1, 10, 20, 30, 40))
            print(f"| {name} | {shown} | {time.perf_counter() - started:.0f} |", flush=True)


if __name__ == "__main__":
    main()
