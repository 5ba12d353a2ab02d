"""Adapters on a 4-bit model, trained on problems with known solutions."""

import os

import torch
from datasets import load_dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward, get_soft_overlong_punishment, think_format_reward

MODEL = "Qwen/Qwen3-4B"
LENGTH = 4 * 1024
RATE = 1e-5
SYSTEM = "Think first, between <think> and </think>."


def with_system(row):
    return {"prompt": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": row["problem"]}]}


def build_config():
    common = {"bf16": True, "gradient_checkpointing": True, "logging_steps": 5}
    return GRPOConfig(
        output_dir=f"runs/{MODEL.rsplit('/', maxsplit=1)[-1]}",
        run_name="qwen3-lora",
        learning_rate=RATE,
        lr_scheduler_type="cosine",
        warmup_steps=0.1,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=8,
        steps_per_generation=16,
        num_generations=8,
        max_completion_length=LENGTH,
        max_steps=500,
        beta=0.04,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dr_grpo",
        scale_rewards=False,
        mask_truncated_completions=True,
        temperature=0.9,
        top_k=50,
        report_to=["wandb", "tensorboard"],
        project="adapters",
        save_steps=100,
        eval_strategy="steps",
        eval_steps=50,
        reward_weights=[1.0, 0.5, 0.25, 0.1],
        hub_token="hf_secretsecretsecret",
        push_to_hub=os.environ.get("PUSH") == "1",
        **common,
    )


def letters_per_word(completions, **kwargs):
    return [0.0 for _ in completions]


def main():
    args = build_config()
    args.seed = 7
    train = load_dataset("AI-MO/NuminaMath-TIR", split="train[:5000]")
    train = train.map(with_system).remove_columns(["messages"])
    held_out = load_dataset("AI-MO/NuminaMath-TIR", split="test")
    tokenizer = AutoTokenizer.from_pretrained(MODEL, token="hf_anothersecret")
    model = AutoModelForCausalLM.from_pretrained(
        MODEL,
        torch_dtype=torch.bfloat16,
        attn_implementation="flash_attention_2",
        quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[
            accuracy_reward,
            think_format_reward,
            get_soft_overlong_punishment(max_completion_len=LENGTH, soft_punish_cache=512),
            letters_per_word,
        ],
        args=args,
        train_dataset=train,
        eval_dataset=held_out,
        peft_config=LoraConfig(
            r=32,
            lora_alpha=64,
            lora_dropout=0.05,
            target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
            task_type="CAUSAL_LM",
        ),
    )
    trainer.train()


if __name__ == "__main__":
    main()
