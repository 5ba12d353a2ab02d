"""A first GRPO job: completions are rewarded for their number of different letters."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def different_letters(completions, **kwargs):
    return [float(len(set(completion))) for completion in completions]


dataset = load_dataset("trl-lib/ultrafeedback-prompt", split="train")
trainer = GRPOTrainer(
    model="Qwen/Qwen2.5-0.5B-Instruct",
    reward_funcs=different_letters,
    args=GRPOConfig(output_dir="out/qwen-letters"),
    train_dataset=dataset,
)
trainer.train()
