"""The slime importer: every flag becomes a key or a note, and a script becomes a spec that validates."""

import re
from pathlib import Path
from typing import Any

import pytest
import tomli

from rlrun.cli.importing import slime
from rlrun.converters.slime.draft import Draft
from rlrun.converters.slime.flag_rules import RULES
from rlrun.converters.slime.flag_table import FlagRow, flag_table
from rlrun.converters.slime.importer import import_script
from rlrun.plugins.registry import load, names
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.problems.suggestions import KeyIndex, section_models
from rlrun.specs.sections.job import Spec

HERE = Path(__file__).parent
ROWS = list(flag_table().values())
SPEC_KEYS = set(KeyIndex(Spec).paths())
PLUGIN_KINDS = {"algorithm": "algorithms", "data": "data", "rewards": "rewards", "eval.datasets": "data"}
PLUGIN_KINDS |= {"trackers": "trackers"}
EAGLE = "--sglang-speculative-algorithm EAGLE"
SAMPLES = {"int": "3", "float": "0.5", "str": "x", "ints": "1 2", "strs": "a b", "flag": ""}


def imported(tmp_path: Path, flags: str) -> Draft:
    script = tmp_path / "run.sh"
    script.write_text(f"ARGS=(\n{flags}\n)\npython3 train.py ${{ARGS[@]}}\n")
    return import_script(script)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_flag_has_a_key_or_a_reason(row: FlagRow) -> None:
    assert bool(row.key) != bool(row.why)
    assert row.type in SAMPLES
    assert row.rule is None or row.rule in RULES
    if row.key:
        assert key_exists(row), f"the spec has no key {row.key}"
    if (row.key or "").endswith(".type") and row.values:
        kind = PLUGIN_KINDS[(row.key or "").partition(".")[0]]
        assert set(row.values.values()) <= set(names(kind))


def key_exists(row: FlagRow) -> bool:
    """Whether the key is the spec's own, or a parameter of the plugins it is for."""
    key = (row.key or "").replace(".*", "")
    if key in SPEC_KEYS or key.startswith(("engine.sglang.", "model.chat_template_args")):
        return True
    table = next((table for table in PLUGIN_KINDS if key.startswith(f"{table}.")), None)
    if table is None:
        return False
    kind = PLUGIN_KINDS[table]
    if key == "rewards.url":
        return has_field(load("rewards", "remote").Params, ["url"])
    plugins = (
        row.of or ({"algorithms": ("grpo",), "data": ("jsonl", "parquet"), "trackers": ("wandb",)}[kind])
    )
    return all(
        has_field(load(kind, name).Params, key.removeprefix(f"{table}.").split(".")) for name in plugins
    )


def has_field(model: Any, path: list[str]) -> bool:
    field = model.model_fields.get(path[0])
    if field is None or len(path) == 1:
        return field is not None
    return any(has_field(inner, path[1:]) for inner in section_models(field.annotation))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_no_flag_is_dropped_in_silence(tmp_path: Path, row: FlagRow) -> None:
    sample = next(iter(row.values), SAMPLES[row.type])
    draft = imported(tmp_path, f"{row.name} {sample}")
    noted = any(re.search(rf"{row.name}\b(?!-)", line) for line in draft.messages())
    commented = any(re.search(rf"{row.name}\b(?!-)", text) for text in draft.comments.values())
    assert noted or commented


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("--lr 3e-5", "trainer.lr", 3e-5),
        ("--lr=3e-5", "trainer.lr", 3e-5),
        ("--lr 1 --lr 2", "trainer.lr", 2.0),
        ("--rollout_top_p 0.9", "rollout.top_p", 0.9),
        ("--rollout-top-k -1", "rollout.top_k", -1),
        ("--rollout-stop 'a b' c", "rollout.stop", ["a b", "c"]),
        ("--rollout-stop-token-ids 1 2", "rollout.stop_token_ids", [1, 2]),
        ("--num-rollout 7 --num-epoch 2", "trainer.steps", 7),
        ("--num-epoch 2", "trainer.epochs", 2),
        ("--loss-type sft_loss", "algorithm.type", "sft"),
        ("--advantage-estimator gspo", "algorithm.type", "gspo"),
        (
            "--use-kl-loss --kl-loss-coef 0.1 --use-unbiased-kl",
            "algorithm.kl.in_loss",
            {"type": "k1", "coef": 0.1, "unbiased": True},
        ),
        (
            "--use-kl-loss --kl-loss-type k2 --kl-loss-coef 0.1 --use-unbiased-kl",
            "algorithm.kl.in_loss",
            {"type": "k2", "coef": 0.1, "unbiased": True},
        ),
        ("--use-tis --tis-clip 3", "algorithm.correction", {"type": "tis", "high": 3.0}),
        ("--adam-beta2 0.95", "trainer.betas", [0.9, 0.95]),
        ("--lr 1e-5 --min-lr 1e-6 --lr-decay-style cosine", "trainer.min_lr_ratio", pytest.approx(0.1)),
        ("--lr-decay-style cosine --lr-decay-iters 400", "trainer.schedule_steps", 400),
        ("--num-rollout 10 --lr-decay-iters 400 --lr-warmup-fraction 0.1", "trainer.warmup_steps", 40),
        ("--lr 1e-5 --lr-warmup-iters 4 --lr-warmup-init 1e-6", "trainer.warmup_start_ratio", 0.1),
        ("--lr-decay-style WSD", "trainer.decay_curve", "exponential"),
        ("--lr-decay-style WSD --lr-wsd-decay-style minus_sqrt", "trainer.decay_curve", "sqrt"),
        (
            "--num-rollout 10 --rollout-batch-size 8 --n-samples-per-prompt 4 --global-batch-size 16 "
            "--lr-warmup-fraction 0.1",
            "trainer.warmup_steps",
            2,
        ),
        ("--rm-type boxed_math", "rewards", [{"type": "math"}]),
        ("--rm-type remote_rm --rm-url http://x", "rewards", [{"type": "remote", "url": "http://x"}]),
        ("--rm-type remote_rm --group-rm --rm-url u", "rewards", [{"type": "remote_group", "url": "u"}]),
        (
            "--advantage-estimator ppo --kl-coef 0.01 --kl-loss-type k2",
            "algorithm.kl.in_reward",
            {"coef": 0.01, "type": "k2"},
        ),
        ("--advantage-estimator ppo --critic-lr 1e-5", "critic.lr", 1e-5),
        ("--use-kl-loss --kl-loss-type k2 --ref-update-interval 5", "reference.update_interval", 5),
        (
            "--sglang-mem-fraction-static 0.7 --sglang-cuda-graph-bs 1 2 --sglang-enable-x",
            "engine.sglang",
            {"mem_fraction_static": 0.7, "cuda_graph_bs": [1, 2], "enable_x": True},
        ),
        ("--sglang-max-running-requests 64", "engine", {"type": "sglang", "max_running": 64}),
        (
            "--router-policy round_robin --router-cache-threshold 0.5",
            "engine",
            {
                "type": "sglang",
                "max_running": 512,
                "router": "sglang-router",
                "sglang_router": {"policy": "round_robin", "cache_threshold": 0.5},
            },
        ),
        ("--sglang-router-request-timeout-secs 900", "rollout.request_timeout", 900),
        ("--calculate-per-token-loss", "trainer.reduction", "per_token"),
        ("--disable-grpo-std-normalization", "algorithm.normalize_std", False),
        ("", "data.shuffle", False),
        ("--rollout-shuffle", "data.shuffle", True),
        ("--colocate", "cluster", {"nodes": 1, "gpus_per_node": 8, "placement": "colocated"}),
        (
            "--actor-num-gpus-per-node 4 --rollout-num-gpus 4",
            "cluster",
            {"nodes": 1, "gpus_per_node": 8, "placement": "disaggregated"},
        ),
        ("--actor-num-nodes 2 --rollout-num-gpus 16", "cluster.nodes", 4),
        ("--actor-num-gpus-per-node 4 --rollout-num-gpus 12", "cluster.gpus_per_node", 8),
        ("--tensor-model-parallel-size 2 --context-parallel-size 2", "trainer.parallel.fsdp", 2),
        (
            "--pipeline-model-parallel-size 4 --num-layers 62 --decoder-last-pipeline-num-layers 14",
            "trainer.parallel.pipeline_layers",
            [16, 16, 16, 14],
        ),
        (
            "--pipeline-model-parallel-size 2 --num-layers 9 --decoder-first-pipeline-num-layers 5 "
            "--decoder-last-pipeline-num-layers 4",
            "trainer.parallel.pipeline_layers",
            [5, 4],
        ),
        ("--use-tensorboard", "trackers", [{"type": "tensorboard"}]),
        (
            "--use-tensorboard --use-wandb --wandb-project p --wandb-team t",
            "trackers",
            [{"type": "tensorboard"}, {"type": "wandb", "project": "p", "entity": "t"}],
        ),
        ("--prompt-data rows.parquet@[:9]", "data.type", "parquet"),
        ("--micro-batch-size 4", "trainer.micro_batch_size", 4),
        ("--update-weight-buffer-size 1073741824", "engine.weight_bucket", 1024),
        ("--num-steps-per-rollout 2 --use-routing-replay", "trainer.moe.routing_replay", "trainer"),
        ("--moe-router-enable-expert-bias", "trainer.moe.balancing", "bias"),
        (
            "--moe-router-enable-expert-bias --moe-router-bias-update-rate 0.01",
            "trainer.moe.balancing_rate",
            0.01,
        ),
        ("--enable-mtp-training", "trainer.mtp_loss", 0.2),
        ("--enable-mtp-training --mtp-loss-scaling-factor 0.1", "trainer.mtp_loss", 0.1),
        ("--optimizer-cpu-offload", "trainer.offload", "optimizer"),
        ("--recompute-granularity selective", "trainer.activation_checkpointing", "selective"),
        ("--use-fault-tolerance", "fault_tolerance.engine_restarts", 3),
        ("--tb-experiment-name 'my run/1'", "name", "my-run-1"),
        (
            f"{EAGLE} --sglang-speculative-num-steps 3 --sglang-speculative-eagle-topk 1 "
            "--sglang-speculative-num-draft-tokens 4",
            "engine.speculative",
            {"algorithm": "mtp", "draft_tokens": 3},
        ),
        (
            f"{EAGLE} --sglang-speculative-draft-model-path /draft",
            "engine.speculative",
            {"algorithm": "eagle", "draft_model": "/draft"},
        ),
        (
            "--sglang-speculative-algorithm NGRAM --sglang-speculative-num-draft-tokens 12",
            "engine.speculative",
            {"algorithm": "ngram", "draft_tokens": 11},
        ),
        (
            f"{EAGLE} --sglang-speculative-num-steps 5 --sglang-speculative-eagle-topk 4 "
            "--sglang-speculative-num-draft-tokens 8",
            "engine",
            {
                "type": "sglang",
                "max_running": 512,
                "speculative": {"algorithm": "mtp", "draft_tokens": 7},
                "sglang": {"speculative_num_steps": 5, "speculative_eagle_topk": 4},
            },
        ),
    ],
)
def test_flags_land_in_their_keys(tmp_path: Path, flags: str, key: str, value: Any) -> None:
    found: Any = tomli.loads(imported(tmp_path, flags).toml())
    for part in key.split("."):
        found = found[part]
    assert found == value


@pytest.mark.parametrize(
    ("flags", "note"),
    [
        ("--lr fast", '--lr fast: "fast" is not a number; set trainer.lr by hand'),
        ("--lr", "--lr: takes one value, found 0"),
        ("--rolout-top-p 1", "did you mean --rollout-top-p?"),
        ("--wholly-unknown", "--wholly-unknown: this flag is not in the list"),
        ("--sglang-tp-size 2", "--sglang-tp-size 2: set by rlrun: engine.tensor"),
        ("--router-disable-retries", "--router-disable-retries: set by rlrun"),
        ("--sglang-router-ip ::1", "--sglang-router-ip ::1: the job starts the router, unless"),
        ("--kl-coef 0", "no effect: 0 means no penalty"),
        ("--kl-coef 0.1", "grpo has no KL in the reward"),
        ("--ref-update-interval 5", "no effect: without a KL term"),
        ("--wandb-project p", "--wandb-project p: no effect: W&B is off"),
        ("--critic-lr 1e-5", "grpo has no such parameter"),
        ("--advantage-estimator on_policy_distillation", "teacher.path: set it to the teacher's"),
        ("--rm-url http://x", "no effect without --rm-type remote_rm"),
        ("--lr 1 --lr 2", "--lr 1: no effect: replaced by the value in run.sh:2"),
        ("--kl-loss-coef 0.1", "--kl-loss-coef 0.1: no effect without --use-kl-loss"),
        ("--advantage-estimator ppo2", "ppo2 has no equivalent: choose algorithm.type"),
        ("--gamma 0.9", "--gamma 0.9: grpo has no such parameter"),
        ("--lr-decay-style constant --min-lr 1e-7", "--min-lr 1e-7: no effect: the schedule is constant"),
        ("--micro-batch-size 4 --use-dynamic-batch-size", "packed to `trainer.max_tokens_per_rank`"),
        ("--use-routing-replay", "no effect: the only update of a rollout step"),
        (
            "--moe-router-enable-expert-bias --moe-router-bias-update-rate 0",
            "update-rate 0: no effect: the bias of experts stays as in the checkpoint",
        ),
        (
            "--enable-mtp-training --tensor-model-parallel-size 2",
            "--enable-mtp-training: MTP layers are not trained with --tensor-model-parallel-size",
        ),
        ("--mtp-loss-scaling-factor 0.1", "0.1: no effect without --enable-mtp-training"),
        ("--num-epoch 1 --partial-rollout", "span more than one step: set it to the number of steps"),
        ("--num-layers 4", "Megatron does with --attention-dropout and --hidden-dropout, by default 0.1"),
        (
            "--num-layers 4 --attention-dropout 0",
            "rlrun never applies dropout; Megatron does with --hidden-dropout, by",
        ),
        ("--lr-wsd-decay-style cosine", "cosine: no effect without --lr-decay-style WSD"),
        ("--lr-warmup-init 1e-7", "1e-7: no effect without a warm-up"),
        ("--lr-decay-style constant --lr-decay-iters 5", "5: no effect: the schedule is constant"),
        ("--rm-type judge", "--rm-type judge: no such reward"),
        ("--dynamic-sampling-filter-path my.check", "write the class Check in"),
        ("--eval-interval 2 --eval-prompt-data aime x.jsonl math", "the last word is not part of a pair"),
        ("--colocate --rollout-num-gpus 4", "engines use the trainer's GPUs"),
        ("--tensor-model-parallel-size 3", "8 GPUs cannot be divided by 3"),
        ("--decoder-first-pipeline-num-layers 5", "no effect: --pipeline-model-parallel-size is 1"),
        (
            "--pipeline-model-parallel-size 4 --num-layers 10 --decoder-first-pipeline-num-layers 2",
            "10 layers cannot be divided over 4 stages",
        ),
        (
            "--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 2",
            "the number of layers is unknown, so they cannot be divided over 4 stages",
        ),
        (
            "--prompt-data ${DATA}/x.jsonl",
            "DATA is not set in the script: add `DATA = …` under [vars]",
        ),
        ("--prompt-data $(date)/x.jsonl", "data.path: $(date)/x.jsonl depends on how the script is run"),
        (
            "--sglang-speculative-num-steps 3",
            "--sglang-speculative-algorithm names none of rlrun's algorithms",
        ),
        ("--optimizer sgd-of-another-kind", "has no equivalent (available: adam"),
    ],
)
def test_what_needs_a_decision_is_noted(tmp_path: Path, flags: str, note: str) -> None:
    assert note in "\n".join(imported(tmp_path, flags).messages())


def test_a_script_becomes_a_spec_that_validates(tmp_path: Path) -> None:
    text = import_script(HERE / "slime" / "run.sh").toml()
    for name in ("dapo-math-17k", "aime-2024", "math-500"):
        (tmp_path / f"{name}.jsonl").write_text('{"prompt": "1", "label": "1"}\n')
    path = tmp_path / "job.toml"
    path.write_text(text.replace("/data/Qwen3-4B", "Qwen/Qwen3-4B").replace("/data/", ""))
    spec = load_checked_spec([path]).spec
    assert (spec.rollout.batch_size, spec.rollout.samples_per_prompt) == (32, 8)
    assert (spec.trainer.parallel.fsdp, spec.trainer.parallel.tensor) == (4, 2)
    assert spec.rollout.stop == ("</answer>", 'say "stop"')
    assert [dataset.name for dataset in spec.eval.datasets] == ["aime", "math"]
    assert "lr = 1e-6  " in text
    assert re.search(r"lr = 1e-6 +# --lr$", text, re.MULTILINE)


def test_a_script_of_demonstrations_validates(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"input": "1", "output": "1"}\n')
    flags = (
        "--hf-checkpoint gpt2 --prompt-data rows.jsonl --loss-type sft_loss --rollout-batch-size 16 "
        "--num-rollout 5 --rollout-max-response-len 64 --actor-num-gpus-per-node 1 --eps-clip 0.2"
    )
    text = imported(tmp_path, flags).toml() + '[vars]\nunused = "${var:x=1}"\n'
    text = text.split("[vars]")[0].replace(
        "prompt_key", 'response_key = "output"\nlabel_key = "output"\nprompt_key'
    )
    path = tmp_path / "job.toml"
    path.write_text(text)
    assert load_checked_spec([path]).spec.trainer.global_batch_size == 16


def test_an_asynchronous_script_asks_for_asynchrony(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "python3 train_async.py --actor-num-gpus-per-node 4 --rollout-num-gpus 4\n"
    )
    values = import_script(tmp_path / "run.sh").values
    assert (values["rollout"]["mode"], values["cluster"]["placement"]) == ("async", "disaggregated")


def test_a_script_that_trains_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("echo hello\n")
    with pytest.raises(ValueError, match=r"runs no train\.py"):
        import_script(tmp_path / "run.sh")


def test_without_a_command_the_arrays_count(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("GRPO_ARGS=(--lr 1e-5)\n")
    draft = import_script(tmp_path / "run.sh")
    assert draft.values["trainer"]["lr"] == 1e-5
    assert "no command runs train.py; the flags of GRPO_ARGS are imported" in draft.messages()


def test_a_second_import_says_what_the_file_of_functions_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "run.sh"
    for number, functions in enumerate(("a.judge", "a.judge", "b.other")):
        script.write_text(f"python train.py --prompt-data rows.jsonl --custom-rm-path {functions}\n")
        slime(script, tmp_path / f"{number} job.toml")
    printed = capsys.readouterr().out
    written, same, other = re.findall(r"^(?:wrote|kept) .*functions.*", printed, re.MULTILINE)
    assert "write Judge there" in written
    assert same.endswith("run_functions.py, which exists already")
    assert "write Other there, or move it away" in other
    assert f"rlrun validate '{tmp_path}/2 job.toml' --allow-local-plugins" in printed


def test_no_two_classes_of_a_script_have_one_name(tmp_path: Path) -> None:
    functions = ("rm my.judge", "generate-function my.judge", "loss-function my.judge2Params")
    draft = imported(tmp_path, " ".join(f"--custom-{each.replace(' ', '-path ')}" for each in functions))
    assert [each.name for each in draft.unwritten] == ["Judge", "Judge2", "Judge2Params2"]
