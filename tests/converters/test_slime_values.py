"""Every flag of slime that has a key gives a spec that validates, with the key in it."""

import json
import re
import shlex
from pathlib import Path

import pytest
import tomli

from rlrun.converters.shell.script import Word
from rlrun.converters.slime.draft import Draft
from rlrun.converters.slime.flag_table import FlagRow, flag_table
from rlrun.converters.slime.importer import import_command
from rlrun.plugins.authoring.stubs import stub_module
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.local_code import ALLOW_LOCAL

pytestmark = pytest.mark.usefixtures("local_code")
IMAGES = "--multimodal-keys"
"""Needs a model that sees images: a test of its own."""
KEYED = [row for row in flag_table().values() if row.key and row.name != IMAGES]
CONFIG = {
    "model_type": "deepseek_v3",
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 1024,
    "num_hidden_layers": 8,
    "n_routed_experts": 16,
    "max_position_embeddings": 65536,
}
BASE = (
    "--hf-checkpoint MODEL --prompt-data rows.jsonl --num-rollout 10 --rollout-batch-size 8 --colocate "
    "--n-samples-per-prompt 8 --rollout-max-response-len 512 --rm-type math --actor-num-gpus-per-node 8"
)
SFT = (
    "--hf-checkpoint MODEL --prompt-data rows.jsonl --num-rollout 10 --rollout-batch-size 16 "
    "--loss-type sft_loss"
)
TEACHER = "--use-opd --opd-type megatron --opd-teacher-load MODEL --opd-kl-coef 0.5"
EVAL = "--eval-interval 5 --eval-prompt-data held rows.jsonl"
FILES = {
    "mis.yaml": "{use_rs: false, tis_mode: clip, tis_level: geometric, tis_lower_bound: 0.9, "
    "tis_upper_bound: 1.1}",
    "rs.yaml": "{use_rs: true, tis_mode: clip, tis_level: sequence, tis_upper_bound: 4.0, "
    "rs_upper_bound: 3.0, rollout_temperature: 0.5}",
    "eval.yaml": "{datasets: {held: {path: rows.jsonl, top_k: 1, rm_type: f1}}, "
    "defaults: {temperature: 0.6}}",
    "whole.yaml": "{datasets: [{name: a, path: rows.jsonl, prompt_key: question, label_key: answer, "
    "n_samples_per_eval_prompt: 4, temperature: 0.5, top_p: 0.9, top_k: 20, max_response_len: 32, "
    "min_new_tokens: 2, stop: ['#'], stop_token_ids: [7], rm_type: boxed_f1}, "
    "{name: b, path: rows.jsonl, stop: '\\n', rm_type: math, metadata_overrides: {level: 3}}]}",
    "servers.yaml": "{sglang: [{name: actor, server_groups: [{worker_type: regular, num_gpus: 8, "
    "num_gpus_per_engine: 4, overrides: {mem_fraction_static: 0.6}}]}]}",
}
SAMPLES = {"int": "2", "float": "0.5", "str": "x", "ints": "1 2", "strs": "a b", "flag": ""}
NGRAM = "--sglang-speculative-algorithm NGRAM --sglang-speculative-num-draft-tokens 8"
DRAFT = "--sglang-speculative-algorithm EAGLE3 --sglang-speculative-draft-model-path MODEL-draft"
FULLY_ASYNC = "--rollout-function-path x.generate_rollout_fully_async"
GIVEN = {
    "--sglang-router-ip": "--sglang-router-ip host --sglang-router-port 3000",
    "--sglang-router-port": "--sglang-router-ip host --sglang-router-port 3000",
    "--sglang-speculative-algorithm": NGRAM,
    "--sglang-speculative-draft-model-path": DRAFT,
    "--sglang-speculative-eagle-topk": f"{DRAFT} --sglang-speculative-eagle-topk 1 "
    "--sglang-speculative-num-steps 3",
    "--sglang-speculative-num-draft-tokens": NGRAM,
    "--sglang-speculative-num-steps": f"{DRAFT} --sglang-speculative-num-steps 3",
    "--mtp-loss-scaling-factor": "--enable-mtp-training --mtp-loss-scaling-factor 0.5",
    "--actor-num-nodes": "--actor-num-nodes 2",
    "--adam-beta1": "--adam-beta1 0.8",
    "--advantage-estimator": "--advantage-estimator cispo --eps-clip 1.0 --eps-clip-high 4.0",
    "--apply-chat-template-kwargs": "--apply-chat-template-kwargs '{\"enable_thinking\": false}'",
    "--async-save": "--save-interval 2 --async-save",
    "--buffer-filter-path": "--partial-rollout --buffer-filter-path my.order",
    "--critic-lr": "--advantage-estimator ppo --critic-lr 1e-5",
    "--critic-lr-warmup-iters": "--advantage-estimator ppo --critic-lr-warmup-iters 2",
    "--custom-config-path": "--use-tis --custom-tis-function-path mis.compute_mis_weights "
    "--custom-config-path mis.yaml",
    "--custom-reward-post-process-path": f"{TEACHER} --custom-rm-path x.on_policy_distillation.reward_func "
    "--custom-reward-post-process-path x.on_policy_distillation.post_process_rewards",
    "--custom-rm-path": f"{TEACHER} --custom-rm-path x.on_policy_distillation.reward_func",
    "--custom-tis-function-path": "--use-tis --custom-tis-function-path slime.loss.icepop_function",
    "--debug-train-only": f"{SFT} --debug-train-only",
    "--deterministic-mode": "--deterministic-mode --sglang-enable-deterministic-inference",
    "--dynamic-sampling-filter-path": "--dynamic-sampling-filter-path filters.check_reward_nonzero_std",
    "--eps-clip": "--eps-clip 0.3",
    "--eps-clip-c": "--eps-clip-c 3",
    "--eval-config": "--eval-interval 5 --eval-config eval.yaml",
    "--eval-prompt-data": EVAL,
    "--eval-min-new-tokens": f"{EVAL} --eval-min-new-tokens 2",
    "--eval-reward-key": f"{EVAL} --rm-type math --eval-reward-key score",
    "--eval-top-k": f"{EVAL} --n-samples-per-eval-prompt 4 --eval-top-k 1",
    "--freeze-params-name-list": "--freeze-params-name-list embedding output_layer",
    "--group-rm": "--rm-type remote_rm --rm-url http://localhost:8000 --group-rm",
    "--hf-checkpoint": "--hf-checkpoint MODEL",
    "--keep-old-actor": f"{FULLY_ASYNC} --keep-old-actor",
    "--kl-coef": "--advantage-estimator ppo --kl-coef 0.1",
    "--kl-loss-coef": "--use-kl-loss --kl-loss-type k2 --kl-loss-coef 0.5",
    "--kl-loss-type": "--use-kl-loss --kl-loss-type k2 --kl-loss-coef 0.5",
    "--lambd": "--advantage-estimator ppo --lambd 0.9",
    "--load-debug-rollout-data": "",
    "--log-probs-max-tokens-per-gpu": "--use-dynamic-batch-size --max-tokens-per-gpu 4096 "
    "--log-probs-max-tokens-per-gpu 16384",
    "--loss-type": SFT,
    "--lr": "--lr 1e-5",
    "--lr-warmup-init": "--lr-warmup-iters 2 --lr-warmup-init 1e-7",
    "--lr-wsd-decay-iters": "--lr-decay-style WSD --lr-wsd-decay-iters 2",
    "--lr-wsd-decay-style": "--lr-decay-style WSD --lr-wsd-decay-style cosine",
    "--mask-offpolicy-in-partial-rollout": "--partial-rollout --mask-offpolicy-in-partial-rollout",
    "--max-tokens-per-gpu": "--use-dynamic-batch-size --max-tokens-per-gpu 4096",
    "--fsdp-max-tokens-per-gpu": "--use-dynamic-batch-size --fsdp-max-tokens-per-gpu 4096",
    "--use-dynamic-batch-size": "--use-dynamic-batch-size --max-tokens-per-gpu 4096",
    "--min-lr": "--lr 1e-5 --min-lr 1e-6",
    "--moe-router-bias-update-rate": "--moe-router-enable-expert-bias --moe-router-bias-update-rate 0.01",
    "--fp8-recipe": "--fp8-format e4m3 --fp8-recipe blockwise",
    "--no-offload-rollout": "--no-offload-train --no-offload-rollout",
    "--no-offload-train": "--no-offload-train --no-offload-rollout",
    "--num-critic-only-steps": "--advantage-estimator ppo --num-critic-only-steps 2",
    "--global-batch-size": "--global-batch-size 32",
    "--n-samples-per-eval-prompt": f"{EVAL} --n-samples-per-eval-prompt 4",
    "--num-rollout": "--num-rollout 8",
    "--rollout-batch-size": "--rollout-batch-size 8",
    "--rollout-max-response-len": "--rollout-max-response-len 64",
    "--save-hf": "--save-interval 2 --save-hf /root/hf/{rollout_id}",
    "--save-interval": "--save-interval 2",
    "--train-env-vars": '--train-env-vars \'{"NCCL_DEBUG": "WARN", "HF_TOKEN": "hf_x", "RANK": 1}\'',
    "--update-weights-interval": f"{FULLY_ASYNC} --update-weights-interval 2",
    "--update-weight-buffer-size": "--actor-num-nodes 2 --update-weight-buffer-size 536870912",
    "--lr-warmup-fraction": "--num-epoch 2 --lr-warmup-fraction 0.5",
    "--warmup-ratio": "--num-epoch 2 --warmup-ratio 0.5",
    "--muon-momentum": "--optimizer muon --muon-momentum 0.5",
    "--sgd-momentum": "--optimizer sgd --sgd-momentum 0.5",
    "--rollout-num-gpus-per-engine": "--rollout-num-gpus-per-engine 2",
    "--normalize-advantages": "--normalize-advantages",
    "--opd-kl-coef": TEACHER,
    "--opd-teacher-load": TEACHER,
    "--opd-type": "--use-opd --opd-type sglang --rm-url http://10.0.0.1:13141/generate",
    "--use-opd": TEACHER,
    "--opsm-delta": "--use-rollout-logprobs --use-opsm --opsm-delta 0.001",
    "--over-sampling-batch-size": "--over-sampling-batch-size 16",
    "--prompt-data": "--prompt-data rows.jsonl@[:1]",
    "--expert-model-parallel-size": "--expert-model-parallel-size 4",
    "--decoder-first-pipeline-num-layers": "--pipeline-model-parallel-size 2 --num-layers 8 "
    "--decoder-first-pipeline-num-layers 2",
    "--decoder-last-pipeline-num-layers": "--pipeline-model-parallel-size 2 --num-layers 8 "
    "--decoder-last-pipeline-num-layers 2",
    "--ref-update-interval": "--use-kl-loss --kl-loss-type k2 --kl-loss-coef 0.1 --ref-update-interval 2",
    "--reward-key": "--reward-key score",
    "--rm-type": "--rm-type boxed_f1",
    "--rm-url": "--rm-type remote_rm --rm-url http://localhost:8000",
    "--rollout-external-engine-addrs": "--rollout-external-engine-addrs 10.0.0.1:3000 10.0.0.2:3000",
    "--rollout-function-path": "--rollout-function-path x.generate_rollout_fully_async",
    "--rollout-max-context-len": "--rollout-max-context-len 4096",
    "--rollout-num-gpus": "--rollout-num-gpus 8",
    "--rollout-top-k": "--rollout-top-k -1",
    "--rollout-top-p": "--rollout-top-p 1",
    "--sequence-parallel": "--tensor-model-parallel-size 2 --sequence-parallel",
    "--sglang-config": "--sglang-config servers.yaml",
    "--sglang-pipeline-parallel-size": "--rollout-num-gpus-per-engine 4 --sglang-pipeline-parallel-size 2",
    "--sglang-pp-size": "--rollout-num-gpus-per-engine 4 --sglang-pp-size 2",
    "--skip-eval-before-train": f"{EVAL} --skip-eval-before-train",
    "--tis-clip": "--use-tis --tis-clip 3",
    "--tis-clip-low": "--use-tis --tis-clip-low 0.5",
    "--update-weight-mode": "--update-weight-mode delta --update-weight-transport disk",
    "--update-weight-transport": "--update-weight-transport disk",
    "--use-kl-loss": "--use-kl-loss --kl-loss-type k2",
    "--use-opsm": "--num-steps-per-rollout 2 --use-opsm",
    "--use-routing-replay": "--num-steps-per-rollout 2 --use-routing-replay",
    "--use-unbiased-kl": "--use-kl-loss --kl-loss-coef 0.1 --use-unbiased-kl",
    "--value-clip": "--advantage-estimator ppo --value-clip 0.1",
    "--gamma": "--advantage-estimator ppo --gamma 0.9",
    "--wandb-mode": "--use-wandb --wandb-mode offline",
}
"""Flags that need others, or another value than their type's sample."""
INSTEAD = {
    "--num-epoch": "--num-rollout",
    "--lr-warmup-fraction": "--num-rollout",
    "--warmup-ratio": "--num-rollout",
    "--keep-old-actor": "--colocate",
    "--update-weights-interval": "--colocate",
    "--rollout-num-gpus": "--colocate",
    "--rollout-function-path": "--colocate",
    "--rollout-external-engine-addrs": "--colocate",
    "--update-weight-mode": "--colocate",
}
"""Flags of the base that go."""
NOTED = {
    "--num-gpus-per-node",
    "--offload",
    "--offload-train",
    "--offload-rollout",
    "--debug-train-only",
    "--int4-params-rollout",
    "--load-debug-rollout-data",
}
"""Keys that a flag only names, since rlrun does what it asks for, or since another decides."""


@pytest.fixture
def local_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allows the classes that remain to be written."""
    monkeypatch.setenv(ALLOW_LOCAL, "1")


def imported(flags: str) -> Draft:
    words = [Word("train.py", "run.sh:1"), *(Word(word, "run.sh:1") for word in shlex.split(flags))]
    return import_command("run.sh", "run", words, (), FILES.get)


def write_inputs(folder: Path) -> None:
    """Writes the model and the rows that `BASE` names."""
    (folder / "MODEL").mkdir()
    (folder / "MODEL" / "config.json").write_text(json.dumps(CONFIG))
    (folder / "rows.jsonl").write_text('{"input": "1", "label": "1"}\n' * 2)


def validated(draft: Draft, tmp_path: Path) -> None:
    (tmp_path / "MODEL-draft").mkdir()
    write_inputs(tmp_path)
    (tmp_path / "job.toml").write_text(draft.toml())
    if draft.unwritten:
        (tmp_path / draft.functions_file).write_text(stub_module(draft.unwritten, draft.source))
    load_checked_spec([tmp_path / "job.toml"])


def flags_for(row: FlagRow) -> str:
    sample = next(iter(row.values), SAMPLES[row.type])
    given = GIVEN.get(row.name, f"{row.name} {sample}")
    if row.rule == "evaluation" and EVAL not in given and "--eval-config" not in given:
        given = f"{EVAL} {given}"
    if row.rule == "trackers" and row.name.startswith("--wandb"):
        given = f"--use-wandb {given}"
    if given.startswith(SFT):
        return given
    removed = INSTEAD.get(row.name)
    base = re.sub(rf"{removed}\b( [^-]\S*)?", "", BASE) if removed else BASE
    base += " --rollout-num-gpus 8" if removed == "--colocate" and "external" not in row.name else ""
    return f"{base} {given}"


def test_columns_of_images_load_the_vision_tower_and_other_media_are_notes() -> None:
    draft = imported(f'{BASE} {IMAGES} \'{{"image": "pictures", "video": "films"}}\'')
    assert draft.values["data"]["images_key"] == "pictures"
    assert draft.values["trainer"]["vision_tower"] == "frozen"
    assert any("video: only images are supported" in message for message in draft.messages())


@pytest.mark.parametrize("row", KEYED, ids=lambda row: row.name)
def test_the_value_of_a_keyed_flag_validates(tmp_path: Path, row: FlagRow) -> None:
    draft = imported(flags_for(row))
    validated(draft, tmp_path)
    comments = {key: text for key, text in draft.comments.items() if re.search(rf"{row.name}(?![\w-])", text)}
    assert comments or row.name in NOTED, draft.messages()


@pytest.mark.parametrize("row", KEYED, ids=lambda row: row.name)
def test_the_same_flag_beside_demonstrations_validates(tmp_path: Path, row: FlagRow) -> None:
    given = GIVEN.get(row.name, f"{row.name} {next(iter(row.values), SAMPLES[row.type])}")
    skipped = ("--advantage-estimator", "--loss-type", "--num-rollout", "--num-epoch", "--prompt-data")
    if given.startswith(SFT) or row.name in skipped:
        return
    gpus = "" if "--actor-num-gpus" in given else " --actor-num-gpus-per-node 8"
    draft = imported(f"{SFT}{gpus} {given} --loss-type sft_loss")
    validated(draft, tmp_path)


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("--partial-rollout", "rollout.partial", True),
        ("--save-debug-rollout-data x", "debug.save_rollouts", True),
        ("--debug-rollout-only", "debug.mode", "rollout"),
        ("--rm-type boxed_f1", "rewards.0", {"type": "f1", "boxed": True}),
        (
            "--advantage-estimator cispo --eps-clip 1",
            "algorithm",
            {"type": "cispo", "clip": 1.0, "clip_high": 1.0},
        ),
        ("--advantage-estimator gspo", "algorithm", {"type": "gspo", "clip": 0.2, "clip_high": 0.2}),
        ("--sglang-server-concurrency 64", "engine.max_running", 64),
        ("--sglang-enable-fp32-lm-head", "trainer.head_dtype", "float32"),
        ("--sglang-server-concurrency 64 --sglang-max-running-requests 32", "engine.max_running", 32),
        ("--rollout-num-gpus-per-engine 8 --sglang-pp-size 2", "engine.tensor", 4),
        ("", "trainer.weight_decay", 0.01),
        ("", "trainer.betas", [0.9, 0.999]),
        ("", "trainer.schedule", "linear"),
        ("", "trainer.micro_batch_size", 1),
        ("", "rollout.request_timeout", 14400),
        ("--rollout-max-prompt-len 100", "rollout.max_prompt_tokens", 100),
        ("--save-interval 5", "checkpoint.keep", "all"),
        ("--loss-type sft_loss --global-batch-size 2 --save-interval 5", "checkpoint.interval", 5 * 32),
        ("--save-interval 5 --num-rollout 100", "checkpoint.keep", "all"),
        ("--hf-checkpoint /m/Qwen3-8B-FP8/", "model.path", "/m/Qwen3-8B"),
        ("--hf-checkpoint /m/Qwen3-8B-FP8/", "engine.model", "/m/Qwen3-8B-FP8"),
        ("--hf-checkpoint /m/Qwen3-30B-A3B-INT4/", "model.path", "/m/Qwen3-30B-A3B"),
        ("--hf-checkpoint /m/Qwen3-30B-A3B-INT4/", "engine.model", "/m/Qwen3-30B-A3B-INT4"),
        ("--hf-checkpoint /m/Qwen3-30B-A3B-INT4/", "trainer.precision", "int4_qat"),
        ("--hf-checkpoint /m/Qwen3-30B-A3B-INT4/", "trainer.int4_group", 128),
        ("--hf-checkpoint /m/Kimi-K2-Thinking --int4-params-rollout", "trainer.int4_group", 32),
        ("--actor-num-nodes 2", "cluster.address", "auto"),
        ("--use-rollout-logprobs", "trainer.old_log_probs", "rollout"),
        ("--use-rollout-routing-replay", "trainer.moe.routing_replay", "engine"),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "trainer.precision", "float8"),
        ("--fp8-format e4m3 --fp8-recipe blockwise", "trainer.float8_recipe", "blockwise"),
        ("--fp8-format hybrid", "trainer.precision", "float8"),
        ("--fp8-format e4m3 --fp8-recipe mxfp8", "trainer.precision", "mxfp8"),
        ("--sglang-config servers.yaml", "engine.sglang.mem_fraction_static", 0.6),
        ("--partial-rollout", "trainer.old_log_probs", "trainer"),
        ("--partial-rollout --use-rollout-logprobs", "trainer.old_log_probs", "rollout"),
        ("--partial-rollout", "rollout.max_staleness", 10),
        ("--num-rollout 0", "debug.mode", "rollout"),
        ("--num-rollout 0", "trainer.steps", 1),
        ("--optimizer sgd", "trainer.momentum", 0.9),
        ("--optimizer muon", "trainer.momentum", 0.9),
        ("--optimizer muon", "trainer.betas", [0.9, 0.999]),
        ("--disable-rewards-normalization", "algorithm.subtract_mean", False),
        (
            "--use-tis --custom-tis-function-path x.icepop_function",
            "algorithm.correction",
            {"type": "icepop", "high": 2.0, "low": 0.0},
        ),
        (
            "--use-tis --custom-tis-function-path mis.compute_mis_weights --custom-config-path rs.yaml",
            "algorithm.correction",
            {
                "type": "mis",
                "level": "sequence",
                "mode": "clip",
                "high": 4.0,
                "low": 0.25,
                "rejection": {"level": "token", "low": 0.25, "high": 3.0},
            },
        ),
        (
            "--advantage-estimator ppo --optimizer sgd --lr 1e-5 --clip-grad 0.5 --lr-warmup-iters 2",
            "critic",
            {
                "optimizer": "sgd",
                "lr": 1e-5,
                "momentum": 0.9,
                "weight_decay": 0.01,
                "max_grad_norm": 0.5,
                "schedule": "linear",
                "warmup_steps": 2,
            },
        ),
        (
            "--custom-generate-function-path x.generate --rollout-max-context-len 2048",
            "rollout.max_turn_tokens",
            512,
        ),
        (
            "--custom-generate-function-path x.generate --rollout-max-context-len 2048",
            "rollout.max_response_tokens",
            2048 - 768,
        ),
        (
            "--custom-generate-function-path x.generate --use-dynamic-batch-size --max-tokens-per-gpu 4096",
            "rollout.max_response_tokens",
            4096,
        ),
        (
            f"--custom-generate-function-path x.generate --rollout-max-context-len 9000 {EVAL} "
            "--eval-max-response-len 700",
            "eval.max_response_tokens",
            9000 - 4096,
        ),
    ],
)
def test_what_a_flag_becomes(flags: str, key: str, value: object) -> None:
    found: object = imported(f"{BASE} {flags}").values
    for part in key.split("."):
        found = found[int(part)] if isinstance(found, list) else found[part]  # type: ignore[index]
    assert found == value


ASYNC = f"{BASE} --rollout-num-gpus 8".replace("--colocate", "")
FULLY_ASYNC = f"{ASYNC} --rollout-function-path x.generate_rollout_fully_async"


@pytest.mark.parametrize(
    ("program", "flags", "key", "value"),
    [
        ("train_async.py", ASYNC, "trainer.old_log_probs", "trainer"),
        ("train_async.py", ASYNC, "rollout.max_staleness", 1),
        ("train_async.py", f"{ASYNC} --use-rollout-logprobs", "trainer.old_log_probs", "rollout"),
        ("train_async.py", f"{ASYNC} --keep-old-actor", "trainer.old_log_probs", "rollout"),
        ("train_async.py", f"{ASYNC} --keep-old-actor --use-tis", "trainer.old_log_probs", "trainer"),
        ("train_async.py", f"{ASYNC} {EVAL}", "eval.before_training", False),
        ("train.py", FULLY_ASYNC, "trainer.old_log_probs", "trainer"),
        ("train.py", FULLY_ASYNC, "rollout.max_staleness", 10),  # the job's steps
        (
            "train.py",
            f"{FULLY_ASYNC} --num-rollout 9999 --rollout-num-gpus-per-engine 2 "
            "--sglang-server-concurrency 30",
            "rollout.max_staleness",
            30,  # 4 servers of 30 requests, twice, and 8 groups per step
        ),
    ],
)
def test_asynchronous_scripts_keep_slime_s_old_log_probs_and_staleness(
    program: str, flags: str, key: str, value: object, tmp_path: Path
) -> None:
    words = [Word(program, "run.sh:1"), *(Word(word, "run.sh:1") for word in shlex.split(flags))]
    draft = import_command("run.sh", "run", words, (), FILES.get)
    validated(draft, tmp_path)
    section, _, name = key.partition(".")
    assert draft.values[section][name] == value


NO_STEPS = "--num-rollout 0"


@pytest.mark.parametrize(
    "flags",
    [
        "--optimizer sgd",
        NO_STEPS,
        f"{NO_STEPS} --lr-warmup-iters 5",
        f"{NO_STEPS} --lr-decay-style WSD --lr-wsd-decay-iters 3",
        f"{NO_STEPS} --advantage-estimator ppo --num-critic-only-steps 2",
        "--partial-rollout",
        EVAL,
    ],
)
def test_settings_that_slime_has_and_rlrun_has_not_validate(flags: str, tmp_path: Path) -> None:
    validated(imported(f"{BASE} {flags}"), tmp_path)


def test_an_asynchronous_program_lets_engines_wait_for_weights(tmp_path: Path) -> None:
    flags = f"{BASE} --rollout-num-gpus 8".replace("--colocate", "")
    words = [Word("train_async.py", "run.sh:1"), *(Word(word, "run.sh:1") for word in shlex.split(flags))]
    draft = import_command("run.sh", "run", words, (), FILES.get)
    assert draft.values["rollout"]["weight_update"] == "between"
    validated(draft, tmp_path)


def test_other_models_of_a_topology_become_engines(tmp_path: Path) -> None:
    servers = (
        "{sglang: [{name: actor, num_gpus_per_engine: 4, server_groups: "
        "[{worker_type: regular, num_gpus: 4}]}, "
        "{name: Judge 1, model_path: MODEL, update_weights: false, server_groups: "
        "[{worker_type: regular, num_gpus: 4, num_gpus_per_engine: 2, "
        "overrides: {api_key: s3cret, ep_size: 2}}]}]}"
    )
    flags = BASE.replace("--colocate", "--rollout-num-gpus 8 --sglang-config t.yaml").replace(
        "per-node 8", "per-node 8 --num-gpus-per-node 16"
    )
    words = [Word("train.py", "run.sh:1"), *(Word(word, "run.sh:1") for word in shlex.split(flags))]
    draft = import_command("run.sh", "run", words, (), {"t.yaml": servers}.get)
    assert draft.values["engines"] == [
        {
            "name": "judge-1",
            "type": "sglang",
            "path": "MODEL",
            "tensor": 2,
            "count": 2,
            "sglang": {"ep_size": 2},
        }
    ]
    assert draft.values["engine"]["tensor"] == 4
    validated(draft, tmp_path)


def with_config(flags: str, config: str) -> Draft:
    words = [Word("train.py", "run.sh:1"), *(Word(word, "run.sh:1") for word in shlex.split(flags))]
    return import_command("run.sh", "run", words, (), {"t.yaml": config}.get)


SEPARATE = BASE.replace("--colocate", "--rollout-num-gpus 8 --sglang-config t.yaml")


def test_groups_of_a_topology_become_groups_of_the_engine(tmp_path: Path) -> None:
    draft = with_config(
        f"{SEPARATE} --sglang-disaggregation-transfer-backend nixl",
        "{sglang: [{name: actor, num_gpus_per_engine: 2, server_groups: ["
        "{worker_type: prefill, num_gpus: 2, "
        "overrides: {chunked_prefill_size: 8192, max_running_requests: 9}},"
        "{worker_type: decode, num_gpus: 6, overrides: {mem_fraction_static: 0.88}}]}]}",
    )
    assert draft.values["engine"]["groups"] == [
        {"role": "prefill", "count": 1, "sglang": {"chunked_prefill_size": 8192}},
        {"role": "decode", "count": 3, "sglang": {"mem_fraction_static": 0.88}},
    ]
    assert draft.values["engine"]["tensor"] == 2
    assert draft.values["engine"]["sglang"]["disaggregation_transfer_backend"] == "nixl"
    assert "max_running_requests: set by rlrun: engine.max_running" in "\n".join(draft.messages())
    validated(draft, tmp_path)


def test_a_router_that_runs_already_is_used(tmp_path: Path) -> None:
    draft = imported(f"{BASE} --sglang-router-ip ::1 --sglang-router-port 3000")
    assert draft.values["engine"]["router"] == "sglang-router"
    assert draft.values["engine"]["router_url"] == "http://[::1]:3000"
    validated(draft, tmp_path)


def test_servers_of_different_sizes_read_weights_from_files(tmp_path: Path) -> None:
    draft = with_config(
        SEPARATE,
        "{sglang: [{name: actor, server_groups: [{worker_type: regular, num_gpus: 4, num_gpus_per_engine: 2},"
        "{worker_type: regular, num_gpus: 4, num_gpus_per_engine: 4},"
        "{worker_type: placeholder, num_gpus: 2}]}]}",
    )
    engine = draft.values["engine"]
    assert [(group["count"], group["tensor"]) for group in engine["groups"]] == [(2, 2), (1, 4)]
    assert (engine["weight_sync"], engine["weight_check"]) == ("disk", "none")
    validated(draft, tmp_path)


def test_servers_that_prefill_are_taken_from_those_of_the_policy(tmp_path: Path) -> None:
    draft = imported(f"{BASE} --prefill-num-servers 1 --rollout-num-gpus-per-engine 2")
    roles = [(group["role"], group["count"]) for group in draft.values["engine"]["groups"]]
    assert roles == [("prefill", 1), ("decode", 3)]
    validated(draft, tmp_path)


@pytest.mark.parametrize(
    "flags",
    [
        "--wandb-key s3cret --use-wandb",
        "--sglang-api-key s3cret",
        "--router-api-key s3cret",
        "--sglang-some-token s3cret",
        "--rm-type remote_rm --rm-url http://user:s3cret@host/score",
        "--rm-type remote_rm --rm-url 'http://host/score?api_key=s3cret&x=1'",
        "--rollout-external-engine-addrs http://user:s3cret@host:1",
        "--rollout-external-engine-addrs http://user:p@s3cret@host:1",
        "--rollout-external-engine-addrs 'http://host:1/v1?api_key=s3cret'",
        "--use-opd --opd-type sglang --rm-url http://user:s3cret@host:1/generate",
        "--http-proxy http://user:s3cret@host",
    ],
)
def test_a_secret_is_never_written_or_shown(flags: str) -> None:
    draft = imported(f"{BASE} {flags}")
    assert "s3cret" not in "\n".join([draft.toml(), *draft.messages()])


def test_a_secret_in_an_address_refers_to_the_environment(tmp_path: Path) -> None:
    draft = imported(f"{BASE} --rm-type remote_rm --rm-url http://user:s3cret@host/score")
    assert draft.values["rewards"][0]["url"] == "http://${env:URL_CREDENTIALS}@host/score"
    validated(draft, tmp_path)


@pytest.mark.parametrize(
    "written",
    [
        "10.0.0.1:3000",
        "http://user:p@ss@10.0.0.1:3000",
        "'http://10.0.0.1:3000?api_key=x&y=1'",
        "'http://${env:URL_CREDENTIALS}@10.0.0.1:3000'",
        "'http://10.0.0.1:3000#top'",
    ],
)
@pytest.mark.parametrize("flags", ["--rollout-external-engine-addrs", "--use-opd --opd-type sglang --rm-url"])
def test_addresses_of_engines_hold_nothing_else(flags: str, written: str, tmp_path: Path) -> None:
    if "opd" in flags and "://" not in written:
        written = f"http://{written}"
    base = BASE if "opd" in flags else BASE.replace("--colocate", "")
    draft = imported(f"{base} {flags} {written}")
    section = draft.values["engines"][0] if "opd" in flags else draft.values["engine"]
    assert section["urls"] == ["http://10.0.0.1:3000"]
    validated(draft, tmp_path)


def test_prompts_are_left_to_the_model_and_the_user_is_told() -> None:
    draft = imported(BASE)
    assert "max_prompt_tokens" not in draft.values["rollout"]
    assert any("slime drops no prompt" in note for note in draft.notes)


def test_a_file_of_settings_that_multiplies_itself_is_not_read() -> None:
    levels = "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 9))
    words = [Word(word, "run.sh:1") for word in shlex.split(f"train.py {BASE} --sglang-config big.yaml")]
    draft = import_command("run.sh", "run", words, (), {"big.yaml": f"a0: &a0 x\n{levels}sglang: *a8\n"}.get)
    assert "too many aliases" in "\n".join(draft.messages())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "is nested more than 50 deep"),
        ("sglang: &a [*a]", "has a value that contains itself"),
        ("sglang: !!int '-'", "is not valid YAML"),
        ("sglang: !!timestamp x", "is not valid YAML"),
    ],
    ids=["open brackets", "itself", "no number", "no time"],
)
def test_a_file_of_settings_that_no_one_wrote_by_hand_is_named(text: str, reason: str) -> None:
    """PyYAML takes minutes and gigabytes for the brackets."""
    words = [Word(word, "run.sh:1") for word in shlex.split(f"train.py {BASE} --sglang-config bad.yaml")]
    draft = import_command("run.sh", "run", words, (), {"bad.yaml": text}.get)
    assert f"the file {reason}" in "\n".join(draft.messages())


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        ("--eval-interval 1 --eval-config gone.yaml", "gone.yaml: the file was not found"),
        (
            "--apply-chat-template-kwargs nonsense",
            "not a JSON object of plain values: set model.chat_template_args by hand",
        ),
        ("--prefill-num-servers 8", "leaves none of 8 servers to decode"),
        ("--sglang-disaggregation-mode prefill", "set by rlrun: role in [[engine.groups]]"),
        ("--sglang-disaggregation-ib-device mlx5_0", "no effect: every server computes its prompts itself"),
        ("--sglang-encoder-urls a", "the servers that compute prompts encode their images, too"),
        ("--custom-rm-path my.reward", "write the class Reward in run_functions.py"),
        ("", "without --label-key, slime's rewards see no label"),
        ("--optimizer muon", "rlrun's by 0.2 of that, with Nesterov's momentum"),
        ("--fp8-format e4m3", 'the recipe "delayed" has no equivalent'),
        (f"--rollout-max-prompt-len 9 {EVAL}", "slime evaluates prompts of any length without"),
        ("--num-epoch 2 --save-interval 3", "no effect: --num-rollout takes precedence"),
        ("--use-stateless-adam --no-save-optim", "no effect: --use-stateless-adam has no state to save"),
        ("--buffer-filter-path my.order", "only --partial-rollout fills the buffer"),
        ("--eval-prompt-data a rows.jsonl", "slime evaluates only with --eval-interval and a dataset"),
        ("--use-opsm", "a step has one update, before which old and new policy are equal"),
        ("--eps-clip-c 3 --advantage-estimator cispo", "cispo has no such parameter"),
        ("--optimizer sgd --adam-beta1 0.8", "--adam-beta1 0.8: no effect: --optimizer sgd has no such"),
        ("--optimizer sgd", "Megatron's sgd adds the decay to gradients"),
        ("--sgd-momentum 0.8", "--sgd-momentum 0.8: no effect without --optimizer sgd"),
        ("--num-rollout 0", "slime only evaluates; this job evaluates, and then also generates one step"),
        (f"--num-rollout 0 {EVAL} --skip-eval-before-train", "without a step slime evaluates in any case"),
        ("--keep-old-actor", "--keep-old-actor: left out: without asynchrony"),
        (
            "--use-tis --custom-tis-function-path mis.compute_mis_weights --custom-config-path rs.yaml "
            "--use-kl-loss --kl-loss-type k2 --kl-loss-coef 0.1",
            "rejected tokens keep their KL and entropy terms",
        ),
        (
            "--use-tis --custom-tis-function-path mis.compute_mis_weights --custom-config-path rs.yaml",
            "the file also sets --rollout-temperature",
        ),
        ("--custom-generate-function-path x.generate", "set rollout.max_turn_tokens = 512"),
    ],
)
def test_what_has_no_equal_is_noted(flags: str, note: str) -> None:
    assert note in "\n".join(imported(f"{BASE} {flags}").messages())


NASTY = [
    "",
    "0",
    "-1",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "abc",
    "0x10",
    "true",
    "[1",
    "${X}",
    "$(date)",
    "é",
    "1 2 3",
]
NASTY += ["'\"'", "a\\\\b", "9" * 30, "2024-01-01", "'{\"a\": null}'", "--", "'a\nb'"]


@pytest.mark.parametrize("row", flag_table().values(), ids=lambda row: row.name)
def test_no_value_of_a_flag_breaks_the_importer(row: FlagRow) -> None:
    for value in NASTY:
        for flags in (f"{row.name} {value}", f"{flags_for(row)} {row.name} {value}"):
            tomli.loads(imported(flags).toml())


@pytest.mark.parametrize("value", NASTY)
def test_no_argument_of_a_server_breaks_the_importer(value: str) -> None:
    tomli.loads(imported(f"{BASE} --sglang-some-argument {value} --router-policy {value}").toml())


def test_a_whole_file_of_evaluations_is_translated(tmp_path: Path) -> None:
    draft = imported(f"{BASE} --eval-interval 5 --eval-config whole.yaml --eval-top-k 50 --reward-key score")
    validated(draft, tmp_path)
    first, second = draft.values["eval"]["datasets"]
    assert first == {
        "name": "a",
        "path": "rows.jsonl",
        "prompt_key": "question",
        "label_key": "answer",
        "tools_key": "tools",
        "samples_per_prompt": 4,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "max_response_tokens": 32,
        "min_response_tokens": 2,
        "stop": ["#"],
        "stop_token_ids": [7],
        "apply_chat_template": False,
        "rewards": [{"type": "f1", "boxed": True, "key": "score"}],
    }
    assert (second["stop"], draft.values["eval"]["top_k"]) == (["\\n"], 50)
    assert "rewards" not in second
    assert any("b: metadata_overrides: add these entries" in message for message in draft.messages())
