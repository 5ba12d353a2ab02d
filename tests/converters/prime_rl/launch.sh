#!/bin/bash
# One file, an overlay, and flags.
STEPS=${STEPS:-75}
uv run rl @ reverse_text.toml @ overlay.toml \
    --max-steps $STEPS --run.name from-flags --trainer.optim.lr 5e-6 \
    --orchestrator.train.sampling.temperature 0.8 --no-monitors.file --clean \
    --orchestrator.train.source.0.env.taskset '{"split": "train"}' \
    --inference.vllm.tensor-parallel-size 2 --deployment.num-infer-gpus 4
