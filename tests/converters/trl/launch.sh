#!/bin/bash
# The command line of TRL, over accelerate.
MODEL=${MODEL:-Qwen/Qwen2.5-1.5B-Instruct}
GPUS=4

accelerate launch --num_processes $GPUS --config_file zero3.yaml \
    -m trl grpo \
    --model_name_or_path "$MODEL" \
    --dataset_name trl-lib/DeepMath-103K \
    --reward_funcs accuracy_reward think_format_reward \
    --learning_rate 1e-6 \
    --max_steps 100 \
    --num_generations 8 \
    --per_device_train_batch_size 8 \
    --gradient_accumulation_steps 2 \
    --use_vllm \
    --vllm_mode colocate \
    --model_init_kwargs '{"attn_implementation": "flash_attention_2"}' \
    --wandb_log_unique_prompts true \
    --output_dir "out/$(basename $MODEL)"
