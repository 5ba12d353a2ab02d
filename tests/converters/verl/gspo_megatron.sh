#!/usr/bin/env bash
# GSPO of a mixture-of-experts model with Megatron and SGLang, and a correction of the engine's log-probs.
python3 -m verl.trainer.main_ppo \
    --config-path=config --config-name=ppo_megatron_trainer.yaml \
    algorithm.adv_estimator=grpo \
    algorithm.norm_adv_by_std_in_grpo=false \
    algorithm.rollout_correction.rollout_is=token \
    algorithm.rollout_correction.rollout_is_threshold=0.5_5.0 \
    data.train_files=train.parquet data.val_files=null \
    data.train_batch_size=256 data.max_prompt_length=2048 data.max_response_length=8192 \
    actor_rollout_ref.model.path=Qwen/Qwen3-30B-A3B \
    actor_rollout_ref.actor.policy_loss.loss_mode=gspo \
    actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-mean \
    actor_rollout_ref.actor.clip_ratio_low=3e-4 actor_rollout_ref.actor.clip_ratio_high=4e-4 \
    actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2 \
    actor_rollout_ref.actor.megatron.expert_model_parallel_size=8 \
    actor_rollout_ref.actor.megatron.optimizer_offload=True \
    +actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full \
    actor_rollout_ref.actor.optim.lr_decay_style=cosine actor_rollout_ref.actor.optim.min_lr=1e-7 \
    actor_rollout_ref.rollout.name=sglang actor_rollout_ref.rollout.n=16 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=4 \
    +actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=fa3 \
    +actor_rollout_ref.rollout.engine_kwargs.sglang.api_key=sk-verysecret \
    reward.custom_reward_function.path=my/reward.py reward.custom_reward_function.name=grade \
    trainer.nnodes=2 trainer.n_gpus_per_node=8 trainer.total_training_steps=300 \
    trainer.experiment_name=gspo-30b ~trainer.project_name
