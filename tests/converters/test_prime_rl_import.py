"""`rlrun import prime-rl`: files modelled on prime-rl's examples, and every field of its configuration."""

import random
from pathlib import Path
from typing import Any

import pytest

from rlrun.converters.imports.import_draft import ImportDraft
from rlrun.converters.imports.settings import add_setting
from rlrun.converters.prime_rl.importer import RULES, PrimeSource, import_files, import_settings, prime_table
from tests.converters.imported_specs import other_than, problems, unaccounted

EXAMPLES = Path(__file__).parent / "prime_rl"
BASE = {
    "max_steps": 100,
    "model.name": "Qwen/Qwen3-0.6B",
    "orchestrator.batch_size": 128,
    "orchestrator.group_size": 8,
    "orchestrator.train.source.0.env.taskset.id": "tasks",
    "orchestrator.eval.source.0.env.taskset.id": "held-out",
    "seq_len": 4096,
}
OTHER_VALUES: dict[str, Any] = {
    "trainer.optim.type": "muon",
    "trainer.scheduler.type": "cosine",
    "trainer.scheduler.min_lr": 1e-7,
    "trainer.model.ac.mode": "selective",
    "trainer.model.ac": False,
    "trainer.model.compile": False,
    "trainer.model.lora": {},
    "trainer.model.lora.target_modules": ["q_proj"],
    "trainer.model.quantization": {},
    "trainer.model.quantization.type": "mxfp8",
    "trainer.model.moe_router_dtype": "bfloat16",
    "trainer.model.ep": 2,
    "trainer.model.ep_comm_backend": "deepep",
    "trainer.model.cp": 2,
    "trainer.model.dp_replicate": 2,
    "deployment.num_train_gpus": 4,
    "deployment.num_infer_gpus": 4,
    "deployment.type": "multi_node",
    "weight_broadcast.type": "nccl",
    "trainer.weight_broadcast.type": "nccl",
    "orchestrator.weight_broadcast.type": "nccl",
    "orchestrator.algo.type": "opd",
    "orchestrator.algo.teacher.base_url": "http://teacher:30000/v1",
    "orchestrator.group_size": 4,
    "orchestrator.batch_size": 64,
    "orchestrator.seq_len": 2048,
    "ckpt.interval": 5,
    "trainer.ckpt.interval": 5,
    "orchestrator.ckpt.interval": 5,
    "ckpt.keep_last": 2,
    "trainer.ckpt.keep_last": 2,
    "orchestrator.ckpt.keep_last": 2,
    "max_steps": 50,
    "trainer.max_steps": 50,
    "orchestrator.max_steps": 50,
    "seq_len": 8192,
    "monitors.wandb": {},
    "monitors.wandb.tags": ["tag"],
    "run.name": "a name",
    "run.dir": "folder",
    "inference.vllm.max_num_seqs": 64,
    "inference.vllm.tensor_parallel_size": 1,
    "inference.vllm.gpu_memory_utilization": 0.8,
    "orchestrator.train.sampling.max_completion_tokens": 512,
    "orchestrator.eval.sampling.temperature": 0.5,
    "orchestrator.eval.sampling.top_p": 0.9,
    "orchestrator.eval.sampling.max_completion_tokens": 256,
    "orchestrator.eval.source.0.sampling.temperature": 0.5,
    "orchestrator.eval.source.0.sampling.top_p": 0.9,
    "orchestrator.eval.source.0.sampling.max_completion_tokens": 256,
    "orchestrator.eval.num_examples": 16,
    "orchestrator.eval.source.0.num_examples": 16,
}
"""Values for settings whose type the default does not tell."""
GPUS = {"deployment.num_train_gpus": 4}
NAMES = sorted(name.replace("*", "0") for name in prime_table().names())
TRANSLATED = [name for name in NAMES if not prime_table().row(name).note]


def of_settings(settings: dict[str, Any]) -> ImportDraft:
    source = PrimeSource("rl.toml")
    for name, value in {**BASE, **settings}.items():
        add_setting(source.settings, name, value, "rl.toml:1")
    return import_settings(source)


def of_text(text: str, tmp_path: Path) -> ImportDraft:
    path = tmp_path / "rl.toml"
    path.write_text(text, "utf-8")
    return import_files([path])


def other_value(name: str) -> Any:
    """Returns a value that is not the default."""
    return OTHER_VALUES[name] if name in OTHER_VALUES else other_than(prime_table().default(name))


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_an_example_gives_a_valid_spec(path: Path, tmp_path: Path) -> None:
    draft = import_files([path])
    assert not unaccounted(draft)
    if path.name == "overlay.toml":
        assert problems(draft, tmp_path) == [
            "must be at least 2, found 1: dppo compares the samples of a prompt"
        ]
    else:
        assert problems(draft, tmp_path) == []


def test_prime_rl_s_defaults_are_written_where_rlrun_s_differ() -> None:
    draft = of_settings({})
    rollout, trainer = draft.values["rollout"], draft.values["trainer"]
    assert (rollout["mode"], rollout["max_staleness"]) == ("async", 8)
    assert draft.values["algorithm"] == {
        "type": "dppo",
        "normalize_std": False,
        "threshold": 0.2,
        "threshold_high": 0.2,
        "log_ratio_coef": 0.001,
    }
    assert trainer["reduction"] == "per_token"
    assert "old_log_probs" not in trainer, "dppo takes the engine's of itself"
    assert trainer["weight_decay"] == 0.01
    assert draft.values["filters"] == [{"type": "nonzero_std"}]
    assert draft.values["cluster"] == {"placement": "disaggregated", "gpus_per_node": 2}


@pytest.mark.parametrize(
    ("settings", "algorithm"),
    [
        (
            {"trainer.loss.dppo_mask_low": 0.1, "trainer.loss.kl_tau": 0.0},
            {"type": "dppo", "threshold": 0.1, "threshold_high": 0.2},
        ),
        ({"orchestrator.algo.type": "max_rl"}, {"type": "max_rl", "log_ratio_coef": 0.001}),
        (
            {"orchestrator.algo.type": "rae", "orchestrator.algo.decay": 0.9},
            {"type": "rae", "decay": 0.9, "log_ratio_coef": 0.001},
        ),
        (
            {
                "orchestrator.algo.type": "hierarchical_grpo",
                "orchestrator.algo.episode_agents": ["solver", "critic"],
            },
            {
                **{"type": "hierarchical_grpo", "episode_roles": ["solver", "critic"]},
                "log_ratio_coef": 0.001,
            },
        ),
        ({"trainer.loss.type": "custom"}, {"type": "grpo"}),
        ({"trainer.loss.type": "ipo", "trainer.loss.kl_tau": 0.1}, {"type": "grpo", "log_ratio_coef": 0.1}),
    ],
    ids=["dppo's bounds", "max_rl", "rae", "hierarchical_grpo", "another loss", "the penalty"],
)
def test_a_loss_is_the_nearest_of_rlrun_s(settings: dict[str, Any], algorithm: dict[str, Any]) -> None:
    written = of_settings(settings).values["algorithm"]
    written.pop("normalize_std", None)
    assert written == algorithm


def test_a_batch_counts_samples() -> None:
    draft = of_settings({"orchestrator.batch_size": 512, "orchestrator.group_size": 16})
    assert draft.values["rollout"]["batch_size"] == 32
    assert "global_batch_size" not in draft.values["trainer"]


def test_files_and_flags_override_in_order() -> None:
    draft = import_files([EXAMPLES / "launch.sh"])
    assert draft.values["trainer"]["steps"] == 75
    assert draft.values["name"] == "from-flags"
    assert draft.values["data"] == {"type": "verifiers", "taskset": "other-env", "config": {"split": "train"}}
    files = import_files([EXAMPLES / "reverse_text.toml", EXAMPLES / "overlay.toml"])
    assert files.values["trainer"]["steps"] == 50
    assert "replaced by the array in overlay.toml" in "\n".join(files.messages())


def test_several_sources_are_a_mixture() -> None:
    draft = import_files([EXAMPLES / "math.toml"])
    first, second = draft.values["data"]["sources"]
    assert first == {
        "type": "verifiers",
        "taskset": "math-env",
        "config": {"dataset_name": "org/problems"},
        "weight": 2.0,
    }
    assert second == {"type": "verifiers", "taskset": "science-env"}
    assert [dataset["name"] for dataset in draft.values["eval"]["datasets"]] == ["aime2025", "math500"]
    assert draft.values["eval"]["datasets"][1]["size"] == 100


def test_a_section_has_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "trainer.toml").write_text("[optim]\nlr = 2e-6\n", "utf-8")
    script = tmp_path / "run.sh"
    script.write_text(
        "cd rl\nuv run rl --trainer @ trainer.toml --orchestrator.group-size 4 --max-steps=3\n", "utf-8"
    )
    draft = import_files([script])
    assert draft.values["trainer"]["lr"] == 2e-6
    assert draft.values["trainer"]["steps"] == 3
    assert draft.values["rollout"]["samples_per_prompt"] == 4


def test_an_unknown_setting_is_an_error_that_names_the_nearest(tmp_path: Path) -> None:
    text = "[trainer.optim]\nlearning_rate = 1e-6\nweight_decai = 0.1\n"
    with pytest.raises(
        ValueError, match=r"rl.toml:3: trainer.optim.weight_decai .* trainer.optim.weight_decay\?"
    ):
        of_text(text, tmp_path)


def test_secrets_are_not_copied() -> None:
    draft = import_files([EXAMPLES / "math.toml"])
    assert "verysecret" not in draft.toml() + "\n".join(draft.messages())


@pytest.mark.parametrize(("name", "text"), [("rl.toml", "a = ["), ("run.sh", "python3 train.py\n")])
def test_a_file_without_settings_is_refused(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    with pytest.raises(ValueError, match=r"is not valid TOML|does not run"):
        import_files([path])


def test_every_rule_is_in_the_table() -> None:
    table = prime_table()
    for name, row in table.rows.items():
        assert (row.key is None) + (row.rule is None) + (not row.note) == 2, name
    assert {row.rule for row in table.rows.values() if row.rule} == set(RULES)
    unlisted = {name for name in table.defaults if table.row(name).note == "has no counterpart in rlrun"}
    assert not unlisted


def test_each_setting_without_counterpart_ends_in_a_note() -> None:
    for name in NAMES:
        if name not in TRANSLATED:
            draft = of_settings({name: other_value(name)})
            assert name in {setting.name for setting, _ in draft.setting_notes}


@pytest.mark.parametrize("name", TRANSLATED)
def test_each_setting_alone_ends_in_the_spec_or_in_a_note(name: str, tmp_path: Path) -> None:
    for value in (prime_table().default(name), other_value(name), None, False, "text", -1, [], {}):
        draft = of_settings({name: value})
        assert not unaccounted(draft), value
        draft.toml()
    assert problems(of_settings({**GPUS, name: other_value(name)}), tmp_path) == []


def test_random_settings_end_in_the_spec_or_in_notes() -> None:
    chance = random.Random(0)
    for _ in range(30):
        settings = {
            name: chance.choice([other_value(name), prime_table().default(name), 0, "x", 3, 0.5, True, None])
            for name in sorted({*chance.sample(NAMES, 150), *chance.sample(TRANSLATED, 50)})
        }
        draft = of_settings(settings)
        assert not unaccounted(draft)
        draft.toml()
        assert draft.messages()
