"""`rlrun import verl`: scripts modelled on verl's examples, and every setting of its configuration."""

import random
from pathlib import Path
from typing import Any

import pytest

from rlrun.converters.imports.import_draft import ImportDraft
from rlrun.converters.imports.settings import add_setting
from rlrun.converters.verl.importer import RULES, VerlSource, import_file, import_settings, verl_table
from tests.converters.imported_specs import other_than, problems, unaccounted

EXAMPLES = Path(__file__).parent / "verl"
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
CORRECTION = "algorithm.rollout_correction"
BASE = {
    "actor_rollout_ref.model.path": "Qwen/Qwen3-0.6B",
    f"{ROLLOUT}.name": "sglang",
    f"{ROLLOUT}.n": 8,
    "algorithm.adv_estimator": "grpo",
    "data.train_files": "train.parquet",
    "trainer.total_training_steps": 10,
}
OTHER_VALUES: dict[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "trainer.experiment_name": "a name",
    f"{ACTOR}.policy_loss.loss_mode": "gspo",
    f"{ACTOR}.loss_agg_mode": "seq-mean-token-mean",
    f"{ACTOR}.optim.lr_scheduler_type": "cosine",
    f"{ACTOR}.optim.warmup_style": "cosine",
    f"{ACTOR}.optim.lr_decay_style": "cosine",
    f"{ACTOR}.optim.optimizer": "SGD",
    f"{ACTOR}.optim.betas": [0.8, 0.9],
    f"{ACTOR}.optim.min_lr": 1e-7,
    f"{ACTOR}.kl_loss_type": "k2",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": 2,
    f"{ACTOR}.ppo_mini_batch_size": 128,
    f"{ACTOR}.optim.lr_warmup_steps": 5,
    f"{ACTOR}.fsdp_config.fsdp_size": 4,
    f"{ROLLOUT}.name": "vllm",
    f"{ROLLOUT}.max_num_seqs": 128,
    f"{ROLLOUT}.top_p": 0.9,
    f"{ROLLOUT}.val_kwargs.top_p": 0.9,
    f"{ROLLOUT}.top_k": 20,
    f"{ROLLOUT}.engine_kwargs.sglang": {},
    f"{CORRECTION}.rollout_is": "sequence",
    f"{CORRECTION}.rollout_rs": "token_k1",
    f"{CORRECTION}.rollout_rs_threshold": "0.5_2.0",
    "critic.optim.betas": [0.8, 0.9],
    "actor_rollout_ref.model.target_modules": ["q_proj"],
    "actor_rollout_ref.model.lora.rank": 8,
    "actor_rollout_ref.model.lora_rank": 8,
    "data.val_files": ["held/test.parquet"],
    "data.train_files": ["a.parquet", "b.parquet"],
    "data.gen_batch_size": 2048,
    "data.seed": 5,
    "data.train_batch_size": 2048,
    "trainer.logger": ["wandb", "tensorboard"],
    "trainer.total_training_steps": 20,
    "trainer.save_freq": 5,
    "trainer.test_freq": 5,
    "trainer.max_actor_ckpt_to_keep": 3,
    "trainer.v1.trainer_mode": "separate_async",
    "trainer.critic_warmup": 2,
}
"""Values for settings whose type the default does not tell."""


def of_settings(settings: dict[str, Any]) -> ImportDraft:
    source = VerlSource("run.sh")
    for name, value in {**BASE, **settings}.items():
        add_setting(source.settings, name, value, "run.sh:1")
    return import_settings(source)


def of_script(arguments: str, tmp_path: Path) -> ImportDraft:
    path = tmp_path / "run.sh"
    path.write_text(f"python3 -m verl.trainer.main_ppo {arguments}\n", "utf-8")
    return import_file(path)


def other_value(name: str) -> Any:
    """Returns a value that is not the default."""
    return OTHER_VALUES[name] if name in OTHER_VALUES else other_than(verl_table().defaults.get(name))


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_an_example_gives_a_valid_spec(path: Path, tmp_path: Path) -> None:
    draft = import_file(path)
    assert not unaccounted(draft)
    assert problems(draft, tmp_path) == []


def test_verl_s_defaults_are_written_where_rlrun_s_differ() -> None:
    draft = of_settings({})
    assert draft.values["trainer"]["reduction"] == "per_token"
    assert draft.values["trainer"]["weight_decay"] == 0.01
    assert draft.values["trainer"]["betas"] == [0.9, 0.999]
    assert draft.values["algorithm"]["dual_clip"] == 3.0
    assert draft.values["rollout"]["max_response_tokens"] == 512
    assert draft.values["rollout"]["batch_size"] == 1024
    assert draft.values["trainer"]["global_batch_size"] == 256 * 8
    assert draft.values["cluster"] == {"nodes": 1, "gpus_per_node": 8}


LOSS, ESTIMATOR = f"{ACTOR}.policy_loss.loss_mode", "algorithm.adv_estimator"


@pytest.mark.parametrize(
    ("settings", "algorithm"),
    [
        ({LOSS: "sapo", f"{ACTOR}.tau_pos": 2.0}, {"type": "sapo", "tau": 2.0, "tau_negative": 1.05}),
        ({LOSS: "geo_mean"}, {"type": "gmpo", "clip": 0.2, "clip_high": 0.2}),
        (
            {LOSS: "clip_cov", f"{ACTOR}.policy_loss.clip_cov_ratio": 0.01},
            {
                **{"type": "clip_cov", "clip": 0.2, "clip_high": 0.2, "dual_clip": 3.0},
                **{"fraction": 0.01, "low": 1.0, "high": 5.0},
            },
        ),
        (
            {LOSS: "kl_cov", f"{ACTOR}.policy_loss.ppo_kl_coef": 1.0},
            {"type": "kl_cov", "fraction": 0.0002, "penalty": 1.0},
        ),
        (
            {LOSS: "dppo_tv", f"{ACTOR}.clip_ratio_low": 0.1},
            {"type": "dppo", "threshold": 0.1, "threshold_high": 0.2},
        ),
        (
            {LOSS: "dppo_kl"},
            {"type": "dppo", "divergence": "kl", "threshold": 0.2, "threshold_high": 0.2},
        ),
        ({ESTIMATOR: "gpg", LOSS: "gpg"}, {"type": "gpg"}),
        ({ESTIMATOR: "opo"}, {"type": "opo", "clip": 0.2, "clip_high": 0.2, "dual_clip": 3.0}),
        (
            {
                **{ESTIMATOR: "remax", "algorithm.use_kl_in_reward": True},
                **{"algorithm.kl_ctrl.kl_coef": 0.05, "algorithm.gamma": 0.9},
            },
            {
                **{"type": "remax", "clip": 0.2, "clip_high": 0.2, "dual_clip": 3.0},
                "kl": {"in_reward": {"type": "k1", "coef": 0.05}},
            },
        ),
        ({ESTIMATOR: "gdpo"}, {"type": "gdpo", "clip": 0.2, "clip_high": 0.2, "dual_clip": 3.0}),
        (
            {ESTIMATOR: "tir_optimal_token_baseline"},
            {"type": "optimal_token_baseline", "clip": 0.2, "clip_high": 0.2, "dual_clip": 3.0},
        ),
        (
            {ESTIMATOR: "grpo_passk"},
            {
                **{"type": "pass_at_k", "normalize_std": True},
                **{"clip": 0.2, "clip_high": 0.2, "dual_clip": 3.0},
            },
        ),
    ],
    ids=lambda value: "" if "type" in value else "-".join(map(str, value.values())),
)
def test_a_loss_and_an_estimator_are_an_algorithm(
    settings: dict[str, Any], algorithm: dict[str, Any], tmp_path: Path
) -> None:
    draft = of_settings(settings)
    assert draft.values["algorithm"] == algorithm
    assert not unaccounted(draft)
    assert problems(draft, tmp_path) == []


DISTILLATION, TEACHER = (
    "distillation.distillation_loss",
    "distillation.teacher_models.teacher_model.model_path",
)
CLIPPED = {"clip": 0.2, "clip_high": 0.2, "dual_clip": 3.0}


@pytest.mark.parametrize(
    ("settings", "algorithm"),
    [
        (
            {"loss_mode": "forward_kl_topk", "distillation_loss_coef": 0.5},
            {"type": "grpo", "distillation": {"coef": 0.5, "divergence": {"beta": 0.0, "top_k": 32}}},
        ),
        (
            {"loss_mode": "forward_kl_topk", "topk": 8, "use_task_rewards": False},
            {
                "type": "on_policy_distillation",
                "distillation": {"coef": 1.0, "divergence": {"beta": 0.0, "top_k": 8}},
            },
        ),
        (
            {"loss_mode": "k1", "use_policy_gradient": True, "use_task_rewards": False},
            {"type": "on_policy_distillation", "distillation": {"coef": 1.0}},
        ),
        ({"loss_mode": "k3", "topk": 8}, {"type": "grpo", "distillation": {"coef": 1.0}}),
    ],
)
def test_distillation_compares_distributions_or_the_sampled_token(
    settings: dict[str, Any], algorithm: dict[str, Any], tmp_path: Path
) -> None:
    given = {f"{DISTILLATION}.{name}": value for name, value in settings.items()}
    draft = of_settings({"distillation.enabled": True, TEACHER: "Qwen/Qwen3-8B"} | given)
    assert draft.values["algorithm"] == algorithm | CLIPPED
    assert draft.values["teacher"] == {"path": "Qwen/Qwen3-8B"}
    assert not unaccounted(draft)
    assert problems(draft, tmp_path) == []
    noted = "the distance is k1 of the sampled token" in "\n".join(draft.messages())
    assert noted == (settings["loss_mode"] == "k3")


def test_a_mini_batch_counts_prompts() -> None:
    draft = of_settings({"data.train_batch_size": 64, f"{ACTOR}.ppo_mini_batch_size": 16})
    assert draft.values["rollout"]["batch_size"] == 64
    assert draft.values["trainer"]["global_batch_size"] == 128
    refused = of_settings({"data.train_batch_size": 64, f"{ACTOR}.ppo_mini_batch_size": 48})
    assert "which verl refuses too" in "\n".join(refused.messages())


def test_a_critic_has_verl_s_defaults() -> None:
    draft = of_settings({"algorithm.adv_estimator": "gae"})
    assert draft.values["critic"] == {"lr": 1e-5, "weight_decay": 0.01, "betas": [0.9, 0.999]}
    assert draft.values["algorithm"]["value_clip"] == 0.5


@pytest.mark.parametrize(
    ("settings", "written"),
    [
        ({"rollout_is": "token"}, {"type": "tis", "high": 2.0}),
        (
            {"rollout_is": "token", "rollout_is_threshold": "0.5_5"},
            {"type": "icepop", "low": 0.5, "high": 5.0},
        ),
        (
            {"rollout_is": "sequence", "rollout_is_threshold": 3, "rollout_is_batch_normalize": True},
            {"type": "mis", "level": "sequence", "mode": "truncate", "high": 3.0, "normalize": True},
        ),
        (
            {"rollout_is": "token", "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": 2.0},
            {
                "type": "mis",
                "level": "token",
                "mode": "truncate",
                "high": 2.0,
                "rejection": {"level": "geometric", "low": 0.5, "high": 2.0},
            },
        ),
        (
            {"rollout_is": "token", "rollout_rs": "seq_max_k2", "rollout_rs_threshold": 0.5},
            {
                "type": "mis",
                "level": "token",
                "mode": "truncate",
                "high": 2.0,
                "rejection": {"level": "outlier", "low": 0.367879, "high": 2.71828},
            },
        ),
    ],
)
def test_corrections(settings: dict[str, Any], written: dict[str, Any], tmp_path: Path) -> None:
    draft = of_settings({f"{CORRECTION}.{name}": value for name, value in settings.items()})
    assert draft.values["algorithm"]["correction"] == written
    assert problems(draft, tmp_path) == []


def test_an_unknown_setting_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data.train_batch_sise .* did you mean data.train_batch_size\?"):
        of_script("data.train_batch_sise=8", tmp_path)


def test_hydra_s_signs(tmp_path: Path) -> None:
    arguments = (
        "+my.own=1 ++data.train_batch_size=64 ~trainer.logger trainer.logger=[wandb] data.shuffle=False "
        "data.shuffle=true 'data.train_files=[a.parquet]' actor_rollout_ref.rollout.engine_kwargs.vllm={a:1} "
        "actor_rollout_ref.actor.ppo_mini_batch_size=64 stray"
    )
    draft = of_script(arguments, tmp_path)
    notes = "\n".join(draft.messages())
    assert "+my.own=1: added to verl's settings" in notes
    assert "~trainer.logger: removed" in notes
    assert "data.shuffle=False: no effect: replaced" in notes
    assert "stray is not read" in notes
    assert draft.values["rollout"]["batch_size"] == 64
    assert draft.values["trackers"] == [{"type": "wandb"}]
    assert draft.values["data"]["path"] == "a.parquet"


def test_a_configuration_of_the_user_s_is_read(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "mine.yaml").write_text("data: {train_batch_size: 128}\n", "utf-8")
    draft = of_script("--config-path=config --config-name mine data.shuffle=False", tmp_path)
    assert draft.values["rollout"]["batch_size"] == 128
    assert draft.values["data"]["shuffle"] is False


def test_secrets_are_not_copied() -> None:
    draft = import_file(EXAMPLES / "gspo_megatron.sh")
    assert "verysecret" not in draft.toml() + "\n".join(draft.messages())


def test_a_file_without_verl_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text("python3 train.py\n", "utf-8")
    with pytest.raises(ValueError, match="does not run verl"):
        import_file(path)


def test_every_rule_is_in_the_table() -> None:
    table = verl_table()
    for name, row in table.rows.items():
        assert (row.key is None) + (row.rule is None) + (not row.note) == 2, name
    assert {row.rule for row in table.rows.values() if row.rule} == set(RULES)
    unlisted = {name for name in table.defaults if table.row(name).note == "has no counterpart in rlrun"}
    assert not unlisted


TRANSLATED = [name for name in verl_table().names() if not verl_table().row(name).note]


def test_each_setting_without_counterpart_ends_in_a_note() -> None:
    for name in verl_table().names():
        if name not in TRANSLATED:
            draft = of_settings({name: other_value(name)})
            assert name in {setting.name for setting, _ in draft.setting_notes}


@pytest.mark.parametrize("name", TRANSLATED)
def test_each_setting_alone_ends_in_the_spec_or_in_a_note(name: str, tmp_path: Path) -> None:
    for value in (verl_table().defaults.get(name), other_value(name), None, "text", -1, [], {}):
        draft = of_settings({name: value})
        assert not unaccounted(draft), value
        draft.toml()
    extra = {f"{ROLLOUT}.top_k": 20} if name.endswith("rollout.top_p") else {}
    assert problems(of_settings({name: other_value(name), **extra}), tmp_path) == []


def test_random_settings_end_in_the_spec_or_in_notes() -> None:
    names = sorted(verl_table().names())
    chance = random.Random(0)
    for _ in range(30):
        settings = {
            name: chance.choice(
                [other_value(name), verl_table().defaults.get(name), 0, "x", 3, 0.5, True, None]
            )
            for name in sorted({*chance.sample(names, 150), *chance.sample(TRANSLATED, 50)})
        }
        draft = of_settings(settings)
        assert not unaccounted(draft)
        draft.toml()
        assert draft.messages()
