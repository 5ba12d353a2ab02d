"""`rlrun import trl`: scripts modelled on TRL's documentation, and every setting of its configuration."""

import random
from pathlib import Path
from typing import Any

import pytest

from rlrun.converters.imports.import_draft import ImportDraft
from rlrun.converters.imports.settings import add_setting
from rlrun.converters.trl.importer import RULES, TrlSource, import_file, import_settings, trl_table
from rlrun.converters.trl.python_script import DatasetCall, RewardCall
from tests.converters.imported_specs import other_than, problems, unaccounted

EXAMPLES = Path(__file__).parent / "trl"
GPUS = {"vllm_colocate.py": 4, "lora_math.py": 2}
BASE = {
    "model": "Qwen/Qwen3-0.6B",
    "train_dataset": DatasetCall("org/rows"),
    "reward_funcs": [RewardCall("accuracy_reward", is_trl=True)],
}
OTHER_VALUES: dict[str, Any] = {
    "loss_type": "grpo",
    "importance_sampling_level": "sequence",
    "scale_rewards": "none",
    "lr_scheduler_type": "cosine",
    "optim": "adamw_8bit",
    "eval_strategy": "steps",
    "save_strategy": "no",
    "vllm_mode": "server",
    "vllm_importance_sampling_mode": "token_truncate",
    "report_to": "wandb",
    "eval_dataset": DatasetCall("org/held-out"),
    "train_dataset": DatasetCall("org/rows", changes=["map"]),
    "reward_funcs": [RewardCall("brief"), "org/reward-model"],
    "reward_weights": [0.5],
    "generation_batch_size": 64,
    "vllm_max_model_length": 8192,
    "delta": 4.0,
    "off_policy_mask_threshold": 0.5,
    "vllm_importance_sampling_clip_min": 0.5,
    "vllm_importance_sampling_cap": 2.0,
    "output_dir": "out/name",
    "run_name": "a name",
    "model_name_or_path": "Qwen/Qwen3-1.7B",
    "dataset_name": "org/rows",
    "warmup_ratio": 0.1,
    "max_prompt_length": 512,
    "lora_target_modules": ["q_proj"],
    "peft_config.target_modules": ["q_proj"],
    "peft_config": "LoraConfig",
    "save_total_limit": 3,
    "per_device_train_batch_size": 16,
    "num_generations": 4,
}
"""Values for settings whose type the default does not tell."""


def imported(name: str) -> ImportDraft:
    return import_file(EXAMPLES / name, GPUS.get(name))


def of_settings(settings: dict[str, Any], gpus: int = 1) -> ImportDraft:
    source = TrlSource("train.py")
    for name, value in {**BASE, **settings}.items():
        add_setting(source.settings, name, value, "train.py:1")
    return import_settings(source, gpus)


def of_script(text: str, tmp_path: Path) -> ImportDraft:
    path = tmp_path / "train.py"
    path.write_text(text, "utf-8")
    return import_file(path, 1)


def other_value(name: str) -> Any:
    """Returns a value that is not the default."""
    return OTHER_VALUES[name] if name in OTHER_VALUES else other_than(trl_table().defaults.get(name))


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_an_example_gives_a_valid_spec(path: Path, tmp_path: Path) -> None:
    draft = imported(path.name)
    assert not unaccounted(draft)
    assert problems(draft, tmp_path) == []


def test_the_defaults_of_trl_are_written_where_rlrun_s_differ() -> None:
    draft = imported("quick_start.py")
    trainer, rollout = draft.values["trainer"], draft.values["rollout"]
    assert trainer["reduction"] == "per_token"
    assert trainer["weight_decay"] == 0.0
    assert trainer["betas"] == [0.9, 0.999]
    assert trainer["schedule"] == "linear"
    assert trainer["epochs"] == 3
    assert rollout == {"max_response_tokens": 512, "batch_size": 1, "samples_per_prompt": 8}
    assert draft.values["algorithm"] == {"type": "grpo", "clip": 0.2, "std_epsilon": 1e-4}
    assert draft.values["rewards"] == [{"type": "rewards.py:different_letters"}]
    assert any("--gpus N" in note for note in draft.messages())


def test_what_trl_adds_to_a_standard_deviation_is_written_where_it_divides_by_one() -> None:
    for settings in ({"scale_rewards": "none"}, {"scale_rewards": False}):
        assert "std_epsilon" not in of_settings(settings).values["algorithm"]
    scaled = of_settings({"loss_type": "dr_grpo", "scale_rewards": "group"}).values["algorithm"]
    assert scaled == {"type": "dr_grpo", "normalize_std": True, "std_epsilon": 1e-4, "clip": 0.2}


def test_sapo_has_temperatures_and_no_bounds() -> None:
    settings = {"loss_type": "sapo", "sapo_temperature_neg": 1.5, "epsilon": 0.3}
    draft = of_settings(settings)
    assert draft.values["algorithm"] == {
        "type": "sapo",
        "std_epsilon": 1e-4,
        "tau": 1.0,
        "tau_negative": 1.5,
    }
    assert draft.values["trainer"]["reduction"] == "per_sample_mean"
    assert "epsilon" in "\n".join(draft.messages())
    assert "only sapo has it" in "\n".join(of_settings(settings | {"loss_type": "grpo"}).messages())


def test_vespo_has_the_shape_of_its_weight_and_no_correction() -> None:
    draft = of_settings({"loss_type": "vespo", "vespo_k_neg": 4.0, "use_vllm": True})
    assert draft.values["algorithm"] == {
        "type": "vespo",
        "std_epsilon": 1e-4,
        "k": 2.0,
        "decay": 3.0,
        "k_negative": 4.0,
        "decay_negative": 2.0,
    }
    assert draft.values["trainer"]["reduction"] == "per_token"


def test_luspo_has_ratios_of_whole_samples() -> None:
    settings = {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 2e-3}
    draft = of_settings(settings)
    assert draft.values["algorithm"] == {"type": "luspo", "clip": 2e-3, "std_epsilon": 1e-4}
    assert draft.values["trainer"]["reduction"] == "per_sample_mean"


def test_the_share_of_tokens_of_high_entropy_is_written_where_it_is_given() -> None:
    assert of_settings({"top_entropy_quantile": 0.2}).values["algorithm"]["top_entropy"] == 0.2
    assert "top_entropy" not in of_settings({}).values["algorithm"]


def test_an_adaptive_weight_of_the_entropy_has_trl_s_bounds() -> None:
    settings = {"use_adaptive_entropy": True, "entropy_coef": 0.01, "entropy_target": 0.4}
    algorithm = of_settings(settings).values["algorithm"]
    assert algorithm["entropy_coef"] == 0.01
    assert algorithm["adaptive_entropy"] == {"target": 0.4, "step": 0.005, "low": 0.0, "high": 1.0}
    several = of_settings(settings | {"gradient_accumulation_steps": 2, "steps_per_generation": 8})
    assert "once per step, not in each optimizer step" in "\n".join(several.messages())
    fixed = of_settings(settings | {"use_adaptive_entropy": False})
    assert "adaptive_entropy" not in fixed.values["algorithm"]
    assert "the weight of the entropy bonus is fixed" in "\n".join(fixed.messages())


def test_samples_and_micro_steps_become_prompts_and_optimizer_steps() -> None:
    settings = {
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 8,
        "max_steps": 101,
        "eval_strategy": "steps",
        "eval_dataset": DatasetCall("org/held-out"),
        "eval_steps": 10,
        "save_steps": 20,
    }
    draft = of_settings(settings, gpus=8)
    assert draft.values["rollout"]["batch_size"] == 32  # 4 · 8 GPUs · 8 micro-steps / 8 samples
    assert draft.values["trainer"]["global_batch_size"] == 64
    assert draft.values["trainer"]["steps"] == 26  # 4 optimizer steps each
    assert draft.values["eval"]["interval"] == 3
    assert draft.values["checkpoint"]["interval"] == 5
    assert draft.values["trainer"]["parallel"] == {"fsdp": 8}


def test_vllm_s_correction_is_on_by_default() -> None:
    assert "correction" not in of_settings({}).values["algorithm"]
    written = of_settings({"use_vllm": True}).values["algorithm"]["correction"]
    assert written == {"type": "mis", "level": "sequence", "mode": "mask", "high": 3.0}
    truncated = {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate"}
    assert of_settings(truncated).values["algorithm"]["correction"]["mode"] == "truncate"
    clipped = {**truncated, "vllm_importance_sampling_clip_min": 0.5}
    assert of_settings(clipped).values["algorithm"]["correction"]["mode"] == "clip"


def test_an_unknown_setting_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"train.py:1: learning_rte .* did you mean learning_rate\?"):
        of_settings({"learning_rte": 1e-5})


def test_a_script_is_never_executed(tmp_path: Path) -> None:
    marker = tmp_path / "executed"
    text = f"""
open({str(marker)!r}, "w").close()
from trl import GRPOConfig, GRPOTrainer
RATES = [1e-6]
args = GRPOConfig(learning_rate=RATES[0], beta=2 * 0.02, seed=1 if RATES else 2, output_dir=f"o-{{1 + 1}}")
trainer = GRPOTrainer("org/model", [len], args)
"""
    draft = of_script(text, tmp_path)
    assert not marker.exists()
    assert draft.values["algorithm"]["kl"]["in_loss"]["coef"] == 0.04
    assert draft.values["name"] == "o-2"
    notes = "\n".join(draft.messages())
    assert "train.py:5: learning_rate=RATES[0] cannot be read" in notes
    assert "train.py:5: seed=1 if RATES else 2 cannot be read" in notes
    assert "lr" not in draft.values["trainer"]
    assert "seed" not in draft.values


def test_secrets_are_not_copied() -> None:
    draft = imported("lora_math.py")
    everything = draft.toml() + "\n".join(draft.messages())
    assert "secret" not in everything
    assert "hub_token=…" in everything


def test_a_value_that_cannot_be_read_is_named_without_its_secret(tmp_path: Path) -> None:
    text = (
        "from trl import GRPOConfig, GRPOTrainer\n"
        "GRPOTrainer('m', [len], GRPOConfig(hub_token='hf_' + open('x').read()), "
        "processing_class=load('x', api_key='hidden'))\n"
    )
    draft = of_script(text, tmp_path)
    assert "hf_" not in "\n".join(draft.messages())
    assert "hidden" not in draft.toml() + "\n".join(draft.messages())


SCRIPT = """from trl import GRPOConfig, GRPOTrainer{extra}
GRPOTrainer("org/model", [len], GRPOConfig(beta=0.1))
"""


def test_a_shell_script_leads_to_a_python_script(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(extra=", TrlParser"), "utf-8")
    (tmp_path / "run.sh").write_text(
        "accelerate launch --num_processes 4 --dynamo_backend no train.py --learning_rate 5e-6\n", "utf-8"
    )
    draft = import_file(tmp_path / "run.sh")
    assert draft.values["trainer"]["lr"] == 5e-6
    assert draft.values["algorithm"]["kl"]["in_loss"]["coef"] == 0.1
    assert draft.values["cluster"]["gpus_per_node"] == 4
    assert "dynamo_backend: rlrun starts the processes" in "\n".join(draft.messages())


def test_arguments_of_a_script_of_the_user_s_are_not_trl_s(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(extra=""), "utf-8")
    (tmp_path / "run.sh").write_text("python train.py --learning_rate 5e-6 --mine 1\n", "utf-8")
    notes = "\n".join(import_file(tmp_path / "run.sh").messages())
    assert "--mine: an argument of train.py, which is not read" in notes
    assert "--learning_rate: an argument of train.py" in notes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("print(1)", "calls neither GRPOTrainer nor GRPOConfig"),
        ("def (", "is not a Python script"),
        ("\x00", "is not a Python script"),
    ],
)
def test_a_file_without_settings_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        of_script(text, tmp_path)


def test_every_setting_is_in_one_part_of_the_table() -> None:
    table = trl_table()
    for name, row in table.rows.items():
        assert (row.key is None) + (row.rule is None) + (not row.note) == 2, name
    assert {row.rule for row in table.rows.values() if row.rule} == set(RULES)
    unlisted = {name for name in table.defaults if table.row(name).note == "has no counterpart in rlrun"}
    assert not unlisted


@pytest.mark.parametrize("name", sorted(trl_table().names()))
def test_each_setting_alone_ends_in_the_spec_or_in_a_note(name: str, tmp_path: Path) -> None:
    for value in (trl_table().defaults.get(name), other_value(name), None, "text", -1, [], {}):
        draft = of_settings({name: value})
        assert not unaccounted(draft), value
        draft.toml()
    draft = of_settings({name: other_value(name)}, gpus=2)
    assert problems(draft, tmp_path) == []


def test_random_settings_end_in_the_spec_or_in_notes(tmp_path: Path) -> None:
    names = sorted(trl_table().names())
    chance = random.Random(0)
    for _ in range(30):
        settings = {
            name: chance.choice(
                [other_value(name), trl_table().defaults.get(name), 0, "", "x", 3, 0.5, True, None]
            )
            for name in chance.sample(names, min(200, len(names)))
        }
        draft = of_settings(settings, gpus=chance.choice([1, 3, 8]))
        assert not unaccounted(draft)
        draft.toml()
        assert draft.messages()


def test_flags_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        "trl grpo --no_gradient_checkpointing --max-steps 7 --learning_rate=2e-6 --no_shuffle_dataset\n",
        "utf-8",
    )
    draft = import_file(tmp_path / "run.sh", 1)
    assert draft.values["trainer"]["activation_checkpointing"] == "none"
    assert draft.values["trainer"]["steps"] == 7
    assert draft.values["trainer"]["lr"] == 2e-6
    assert draft.values["data"]["shuffle"] is False


def test_the_last_training_command_of_a_script_is_imported(tmp_path: Path) -> None:
    script = tmp_path / "twice.sh"
    script.write_text("trl grpo --learning_rate 1e-5\ntrl grpo --learning_rate 2e-5\n")
    draft = import_file(script)
    assert draft.values["trainer"]["lr"] == 2e-5
    assert "twice.sh trains 2 times; the last training command is imported" in "\n".join(draft.messages())
