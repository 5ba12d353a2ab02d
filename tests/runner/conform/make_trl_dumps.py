"""Writes the dumps of this folder with TRL, in an environment of its own:

    python3 -m venv /tmp/trl && /tmp/trl/bin/pip install torch==2.14.1 trl==1.16.0
    PYTHONPATH=examples/conform /tmp/trl/bin/python tests/runner/conform/make_trl_dumps.py

The quickstart's model trains for two optimizer steps on each generation, so that the ratios of the second
one are not 1.
"""

import tempfile
from pathlib import Path

from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl_dump import DumpsBatches

MODEL = Path(__file__).parents[3] / "rlrun/specs/recipes/quickstart/model"
DUMPS = Path(__file__).parent / "dumps"
VARIANTS = {
    "grpo": {"loss_type": "grpo"},
    "grpo-kl": {"loss_type": "grpo", "beta": 0.04, "temperature": 0.7},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo", "epsilon_high": 0.28},
    "bnpo": {"loss_type": "bnpo", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
}


class Trainer(DumpsBatches, GRPOTrainer):
    pass


def distinct(completions: list[str], **_: object) -> list[float]:
    """Scores how many different characters a response has."""
    return [len(set(text)) / 10 for text in completions]


def train(name: str, settings: dict[str, object], folder: str) -> None:
    defaults = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    args = GRPOConfig(
        folder,
        **{**defaults, **settings},
        num_generations=4,
        num_iterations=2,
        max_steps=2,
        max_completion_length=24,
        learning_rate=2e-3,
        lr_scheduler_type="constant",
        use_cpu=True,
        bf16=False,
        report_to="none",
        save_strategy="no",
        seed=1,
    )
    rows = [{"prompt": f"Calculate {number} + {number + 3}. Answer:"} for number in range(16)]
    trainer = Trainer(str(MODEL), distinct, args, Dataset.from_list(rows))
    trainer.dump_folder = DUMPS / name
    trainer.train()


for name, settings in VARIANTS.items():
    with tempfile.TemporaryDirectory() as folder:
        train(name, settings, folder)
