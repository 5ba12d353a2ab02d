"""slime's defaults: a script that leaves a flag out gets a spec with slime's value of it, not rlrun's."""

from pathlib import Path
from typing import Any

import pytest

from rlrun.converters.slime.flag_table import flag_table
from rlrun.plugins.registry import load
from rlrun.plugins.validation import load_checked_spec
from tests.converters.test_slime_values import BASE, EVAL, KEYED, imported, validated

GIVEN = {
    *("--hf-checkpoint", "--prompt-data", "--num-rollout", "--num-epoch", "--rollout-batch-size"),
    *("--n-samples-per-prompt", "--rollout-max-response-len", "--actor-num-gpus-per-node", "--rm-type"),
    *("--advantage-estimator", "--loss-type", "--eval-interval", "--eval-prompt-data", "--eval-config"),
}
"""Flags that slime requires, or that choose what the other flags are about."""
LAYOUT = {
    row.name for row in KEYED if row.rule in ("layout", "topology", "sleeping", "weight_sync", "speculation")
}
"""Flags of machines, servers and parallelism: results do not depend on them."""
DELIBERATE = {
    "--use-fault-tolerance": "engines are restarted in any case",
    "--rollout-health-check-timeout": "deadlines of rlrun's own",
    "--rollout-health-check-first-wait": "deadlines of rlrun's own",
    "--rollout-max-prompt-len": "a prompt of any length would need memory: the importer notes the limit",
    "--label-key": "the column `label` is read where rows have it, for rewards that need it",
    "--eval-label-key": "the same column",
    "--rollout-max-context-len": "the same limit",
    "--recompute-granularity": "costs time, not results",
    "--gradient-checkpointing": "costs time, not results",
    "--log-probs-chunk-size": "costs time, not results",
    "--no-check-for-nan-in-loss-and-grad": "both end the job by default",
    "--max-tokens-per-gpu": "without --use-dynamic-batch-size there is --micro-batch-size",
    "--fsdp-max-tokens-per-gpu": "without --use-dynamic-batch-size there is --micro-batch-size",
    "--use-dynamic-batch-size": "without the flag there is --micro-batch-size",
    "--moe-router-dtype": "Megatron's default, `trainer`, is written for models with experts",
    "--tb-experiment-name": "the run is named after the script",
}
"""Defaults that differ for a reason, and do not change what is learned."""
EVALUATION = {
    "--skip-eval-before-train": True,
    "--eval-input-key": "input",
    "--eval-tool-key": "tools",
    "--n-samples-per-eval-prompt": 1,
    "--eval-temperature": None,
    "--eval-top-p": None,
    "--eval-top-k": None,
    "--eval-max-prompt-len": None,
    "--eval-max-response-len": None,
    "--eval-min-new-tokens": None,
    "--eval-reward-key": None,
}
"""Of `[eval]`; None means the value of training, as in slime."""
PPO = {
    "--gamma": 1.0,
    "--lambd": 1.0,
    "--value-clip": 0.2,
    "--kl-coef": None,
    "--num-critic-only-steps": 0,
    "--critic-lr": 1e-6,
    "--critic-lr-warmup-iters": 0,
}
GRPO: dict[str, Any] = {
    "--rollout-temperature": 1.0,
    "--rollout-top-p": 1.0,
    "--rollout-top-k": -1,
    "--rollout-stop": (),
    "--rollout-stop-token-ids": (),
    "--rollout-shuffle": False,
    "--rollout-seed": 42,
    "--rollout-function-path": "sync",
    "--update-weights-interval": 1,
    "--save-hf": None,
    "--train-env-vars": {},
    "--reset-optimizer-states": "never",
    "--over-sampling-batch-size": None,
    "--dynamic-sampling-filter-path": None,
    "--partial-rollout": False,
    "--mask-offpolicy-in-partial-rollout": False,
    "--rollout-external-engine-addrs": (),
    "--rollout-num-gpus-per-engine": 1,
    "--sglang-pp-size": None,
    "--sglang-pipeline-parallel-size": None,
    "--keep-old-actor": None,
    "--use-rollout-logprobs": None,
    "--apply-chat-template": False,
    "--apply-chat-template-kwargs": {},
    "--input-key": "input",
    "--metadata-key": "metadata",
    "--tool-key": "tools",
    "--global-batch-size": None,
    "--num-steps-per-rollout": None,
    "--micro-batch-size": 1,
    "--log-probs-max-tokens-per-gpu": None,
    "--save-interval": None,
    "--async-save": False,
    "--no-save-optim": True,
    "--use-stateless-adam": "adamw",
    "--clip-grad": 1.0,
    "--calculate-per-token-loss": "per_sample_mean",
    "--lr": 1e-6,
    "--eps-clip": 0.2,
    "--eps-clip-high": None,
    "--eps-clip-c": None,
    "--kl-loss-type": None,
    "--use-kl-loss": None,
    "--kl-loss-coef": None,
    "--use-unbiased-kl": None,
    "--ref-update-interval": None,
    "--entropy-coef": 0.0,
    "--normalize-advantages": False,
    "--disable-grpo-std-normalization": True,
    "--disable-rewards-normalization": True,
    "--use-tis": None,
    "--tis-clip": None,
    "--tis-clip-low": None,
    "--custom-tis-function-path": None,
    "--custom-config-path": None,
    "--use-routing-replay": "off",
    "--use-rollout-routing-replay": "off",
    "--use-opsm": None,
    "--opsm-delta": None,
    "--use-opd": None,
    "--opd-type": None,
    "--opd-kl-coef": None,
    "--opd-teacher-load": None,
    "--sglang-router-ip": None,
    "--sglang-router-port": None,
    "--sglang-router-request-timeout-secs": 14400,
    "--sglang-server-concurrency": 512,
    "--use-wandb": None,
    "--wandb-mode": None,
    "--wandb-team": None,
    "--wandb-group": None,
    "--wandb-project": None,
    "--use-tensorboard": None,
    "--save-debug-rollout-data": False,
    "--debug-rollout-only": None,
    "--debug-train-only": None,
    "--save-debug-train-data": False,
    "--dump-details": False,
    "--reward-key": None,
    "--group-rm": "math",
    "--rm-url": None,
    "--custom-rm-path": "math",
    "--custom-reward-post-process-path": "grpo",
    "--custom-advantage-function-path": "grpo",
    "--custom-loss-function-path": "grpo",
    "--custom-pg-loss-reducer-function-path": "grpo",
    "--custom-generate-function-path": "single_turn",
    "--rollout-sample-filter-path": None,
    "--data-source-path": "jsonl",
    "--buffer-filter-path": "fifo",
    "--mtp-loss-scaling-factor": 0.0,
    "--enable-mtp-training": 0.0,
    "--freeze-params-name-list": (),
    "--optimizer": "adamw",
    "--lr-decay-style": "linear",
    "--lr-warmup-iters": 0,
    "--lr-warmup-fraction": None,
    "--warmup-ratio": None,
    "--lr-wsd-decay-iters": None,
    "--lr-wsd-decay-style": "linear",
    "--lr-decay-iters": None,
    "--lr-warmup-init": 0.0,
    "--min-lr": 0.0,
    "--weight-decay": 0.01,
    "--adam-beta1": (0.9, 0.999),
    "--adam-beta2": (0.9, 0.999),
    "--adam-eps": 1e-8,
    "--sgd-momentum": 0.9,
    "--muon-momentum": 0.9,
    "--deterministic-mode": False,
    "--fp8-format": None,
    "--fp8-recipe": "rowwise",
    "--int4-params-rollout": None,
    "--optimizer-cpu-offload": "none",
    "--bf16": "bfloat16",
    "--moe-router-enable-expert-bias": "off",
    "--moe-router-bias-update-rate": 1e-3,
}
"""slime's defaults (slime/utils/arguments.py and Megatron's, August 2026) as values of the flags' keys."""
EXTRA = {"--sgd-momentum": "--optimizer sgd", "--muon-momentum": "--optimizer muon"}


def test_every_flag_with_a_key_has_a_default_here() -> None:
    listed = [*GRPO, *PPO, *EVALUATION, *DELIBERATE, *GIVEN, *LAYOUT]
    assert {row.name for row in KEYED} - set(listed) == set()
    assert set(listed) - set(flag_table()) == set()


def value_of(flags: str, key: str, folder: Path) -> Any:
    """Returns the value of a key in the spec of a script with these flags, with the defaults of rlrun."""
    validated(imported(flags), folder)
    spec = load_checked_spec([folder / "job.toml"]).spec
    document = spec.model_dump()
    document["data"] |= load("data", spec.data.type).Params(**spec.data.params).model_dump()
    algorithm = load("algorithms", spec.algorithm.type).Params(**spec.algorithm.params)
    document["algorithm"] |= algorithm.model_dump()
    for table, section in zip(document["eval"]["datasets"], spec.eval.datasets, strict=True):
        table.update(load("data", section.type).Params(**section.params).model_dump())
    value: Any = document
    for part in key.replace(".*", ".0").split("."):
        if isinstance(value, tuple | list):
            value = value[int(part)] if int(part) < len(value) else None
        elif value is not None:
            value = value.get(part)
    return value


@pytest.mark.parametrize(
    ("flags", "name", "expected"),
    [
        *((EXTRA.get(name, ""), name, value) for name, value in GRPO.items()),
        *(("--advantage-estimator ppo", name, value) for name, value in PPO.items()),
        *((EVAL, name, value) for name, value in EVALUATION.items()),
    ],
)
def test_a_flag_that_is_left_out_has_slime_s_default(
    flags: str, name: str, expected: Any, tmp_path: Path
) -> None:
    row = flag_table()[name]
    assert row.key is not None
    value = value_of(f"{BASE} {flags}", row.key, tmp_path)
    assert value == expected


def test_routers_of_experts_have_megatron_s_precision(tmp_path: Path) -> None:
    flags = f"{BASE} --num-experts 16 --num-layers 8"
    assert value_of(flags, "trainer.moe.router_dtype", tmp_path) == "trainer"
