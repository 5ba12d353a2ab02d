"""vLLM on the trainer's GPUs, GSPO's ratio of sequences, and a KL term."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward

training_args = GRPOConfig(
    "gspo-30b",
    use_vllm=True,
    vllm_mode="colocate",
    vllm_gpu_memory_utilization=0.4,
    vllm_tensor_parallel_size=2,
    vllm_max_model_length=10240,
    vllm_enable_sleep_mode=True,
    max_completion_length=8192,
    importance_sampling_level="sequence",
    loss_type="grpo",
    epsilon=3e-4,
    epsilon_high=4e-4,
    beta=0.001,
    per_device_train_batch_size=2,
    gradient_accumulation_steps=4,
    generation_batch_size=256,
    num_generations=8,
    num_train_epochs=1,
    optim="adamw_8bit",
    model_init_kwargs={"dtype": "bfloat16", "revision": "main"},
    chat_template_kwargs={"enable_thinking": False},
    log_completions=True,
)
trainer = GRPOTrainer(
    model="Qwen/Qwen3-30B-A3B",
    args=training_args,
    reward_funcs=[accuracy_reward],
    train_dataset=load_dataset("json", data_files="problems.jsonl", split="train"),
)
trainer.train()
