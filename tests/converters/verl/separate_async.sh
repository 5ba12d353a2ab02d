#!/usr/bin/env bash
# Engines on nodes of their own, which generate while the trainer works.
python3 -m verl.trainer.main_ppo \
    algorithm.adv_estimator=rloo algorithm.rollout_correction.bypass_mode=True \
    trainer.v1.trainer_mode=separate_async trainer.v1.sampler.max_off_policy_threshold=4 \
    actor_rollout_ref.rollout.nnodes=1 actor_rollout_ref.rollout.name=sglang \
    actor_rollout_ref.rollout.n=8 actor_rollout_ref.model.path=Qwen/Qwen3-4B \
    data.train_files=rows.jsonl data.train_batch_size=64 actor_rollout_ref.actor.ppo_mini_batch_size=64 \
    trainer.nnodes=1 trainer.n_gpus_per_node=8 trainer.total_training_steps=100
