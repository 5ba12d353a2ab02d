"""slime's own scripts: each imports, and validates or is refused for a known reason."""

import re
from pathlib import Path

import pytest

from benchmarks.slime_scripts import (
    PAGE,
    SlimeScript,
    family_problem,
    page,
    problems,
    slime_scripts,
    write_spec,
)
from rlrun.cli.plan.command import plan_as_dict
from rlrun.converters.slime.flag_table import flag_table
from rlrun.models.config_json import architecture
from rlrun.models.families.table import NATIVE, TABLES
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.local_code import ALLOW_LOCAL

SCRIPTS = slime_scripts()
REFUSED = {
    "scripts/run-glm4.7-30B-A3B.sh": [
        "must divide the 4 ranks that hold experts (fsdp 1 × context 2 × tensor 2), found 8",
    ],
}
"""A layout that Megatron refuses too."""

scripts = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.path)


def script(path: str) -> SlimeScript:
    return next(each for each in SCRIPTS if each.path.endswith(path))


def test_every_script_is_there() -> None:
    assert len({each.path for each in SCRIPTS}) == len(SCRIPTS) == 46


@scripts
def test_a_script_validates_or_is_refused_for_a_reason(script: SlimeScript) -> None:
    assert [*problems(script.path)] == REFUSED.get(script.path, [])
    if script.path in REFUSED:
        assert "which Megatron refuses too" in "\n".join(script.draft().messages())


PLANNED = (
    "examples/fully_async/run-qwen3.5-9B-fully_async.sh",
    "examples/geo3k_vlm/run_geo3k_qwen35.sh",
    "examples/multi_agent/run-qwen3-30B-A3B-multi-agent.sh",
    "examples/retool/retool_qwen3_4b_sft.sh",
    "examples/tau-bench/run_qwen3_4B.sh",
    "examples/train_infer_mismatch_helper/run-qwen3-4b-mis.sh",
    "scripts/run-deepseek-r1.sh",
    "scripts/run-glm4-9B.sh",
    "scripts/run-glm4.7-355B-A32B.sh",
    "scripts/run-qwen3-235B-A22B-sft.sh",
    "slime_plugins/rollout_buffer/rollout_buffer_example.sh",
)
"""Scripts whose plan follows from more than a few numbers: epochs, turns, asynchrony, images, large
pipelines."""


@pytest.mark.parametrize("path", PLANNED)
def test_a_script_is_planned_in_numbers_that_make_sense(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ALLOW_LOCAL, "1")
    sizing = plan_as_dict(load_checked_spec([write_spec(script(path), tmp_path)]))["sizing"]
    assert sizing["disk"] < 2e15
    training = next(phase for phase in sizing["phases"] if phase["name"] == "training")
    assert sum(part["bytes"] for part in training["parts"]) < 79 * 2**30


def test_the_plan_of_a_large_pipeline_says_how_it_fits(tmp_path: Path) -> None:
    spec = write_spec(script("scripts/run-deepseek-r1.sh"), tmp_path)
    changes = ["trainer.parallel.reshard_after_forward=default"]
    warnings = plan_as_dict(load_checked_spec([spec], changes))["sizing"]["warnings"]
    assert any(warning.startswith("training") and "(35.4 GiB)" in warning for warning in warnings)
    assert 'to fit, set trainer.parallel.reshard_after_forward = "always": then training' in warnings[-1]


def test_every_family_that_launch_would_refuse_is_refused_by_validate() -> None:
    for each in SCRIPTS:
        if family_problem(each) is not None:
            assert each.config["model_type"] not in NATIVE
        elif each.config["model_type"] not in TABLES["transformers"] or each.config["model_type"] in NATIVE:
            architecture(each.config)
    assert sum(not family_problem(each) for each in SCRIPTS) == 46


@scripts
def test_every_flag_of_a_script_is_a_key_or_a_note(script: SlimeScript) -> None:
    draft = script.draft()
    told = "\n".join([*draft.messages(), *draft.comments.values()])
    silent = [name for name in draft.flags if not re.search(rf"{name}(?![\w-])", told)]
    assert not silent
    assert "this flag is not in the list" not in told


@scripts
def test_no_shell_is_left_in_a_spec(script: SlimeScript) -> None:
    values = re.sub(r"\$\{(var|env):\w+\}", "", script.draft().toml().partition("\n")[2])
    assert not re.search(r"=[^#]*[$`]", values)


@pytest.mark.parametrize("list_of_flags", ["slime_flags.txt", "slime_flags_main.txt"])
def test_the_table_has_every_flag_of_slime(list_of_flags: str) -> None:
    flags = (Path(__file__).parents[1] / "data" / list_of_flags).read_text().split()
    assert len(flags) == {"slime_flags.txt": 163, "slime_flags_main.txt": 231}[list_of_flags]
    assert set(flags) <= set(flag_table())


def test_every_example_has_a_row() -> None:
    page_of_examples = (PAGE.parent / "slime-examples.md").read_text("utf-8")
    folders = {each.path.split("/")[1] for each in SCRIPTS if each.path.startswith("examples/")}
    assert folders
    assert not [name for name in folders if f"`examples/{name}`" not in page_of_examples]


def test_flags_of_older_versions_are_marked() -> None:
    main = (Path(__file__).parents[1] / "data" / "slime_flags_main.txt").read_text().split()
    rows = flag_table().values()
    assert {row.name for row in rows if row.origin == "slime" and not row.older} == set(main)


def test_the_page_is_current() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python benchmarks/slime_scripts.py"


@pytest.mark.parametrize(
    ("path", "key", "value"),
    [
        ("delta_weight_sync/run-glm4.7-30B-A3B-delta.sh", "trainer.betas", [0.9, 0.999]),
        ("delta_weight_sync/run-glm4.7-30B-A3B-delta.sh", "engine.weight_delta", "elements"),
        ("delta_weight_sync/run-glm4.7-30B-A3B-delta.sh", "cluster.nodes", 4),
        ("fully_async/run-qwen3.5-9B-fully_async.sh", "rollout.mode", "async"),
        ("rollout_buffer_example.sh", "rollout.weight_update", "between"),
        (
            "train_infer_mismatch_helper/run-qwen3-4b-mis.sh",
            "algorithm.correction",
            {
                "type": "mis",
                "level": "token",
                "mode": "truncate",
                "high": 2.0,
                "rejection": {"level": "token", "low": 0.5, "high": 2.0},
                "veto": 1e-4,
                "normalize": True,
            },
        ),
        ("on_policy_distillation/run-qwen3-8B-opd.sh", "algorithm.type", "on_policy_distillation"),
        ("on_policy_distillation/run-qwen3-8B-opd.sh", "engines.0.urls", ["http://127.0.0.1:13141"]),
        ("on_policy_distillation/run-qwen3-8B-opd-megatron.sh", "teacher.path", "/root/Qwen3-8B"),
        ("tau-bench/run_qwen3_4B.sh", "eval.temperature", 0.0),
        ("tau-bench/run_qwen3_4B.sh", "rewards.0.type", "noted"),
        ("eval_multi_task/multi_task.sh", "eval.datasets.1.samples_per_prompt", 2),
        ("eval_multi_task/multi_task.sh", "eval.datasets.1.rewards", [{"type": "gpqa"}]),
        ("eval_multi_task/multi_task.sh", "eval.datasets.2.rewards", [{"type": "ifbench"}]),
        ("low_precision/run-qwen3-4b-fp8.sh", "model.path", "/root/Qwen3-4B"),
        ("low_precision/run-qwen3-4b-fp8.sh", "engine.model", "/root/Qwen3-4B-FP8"),
        ("run-deepseek-r1.sh", "model.path", "${var:BASE_DIR}/DeepSeek-R1-bf16"),
        ("run-deepseek-r1.sh", "engine.max_running", 1024),
        ("run-deepseek-r1.sh", "rollout.max_attempts", 1000),
        ("run-deepseek-r1.sh", "cluster.address", "auto"),
        ("run-glm5.2-744B-A40B.sh", "engine.tensor", 64),
        ("run-qwen3-next-80B-A3B.sh", "algorithm.clip_high", 4e-4),
        ("run-qwen3-4B-amd.sh", "engine.sleep", False),
        ("run-qwen2.5-0.5B-reproducibility.sh", "deterministic", True),
        ("run_qwen36_35b_a3b_swe_8nodes.sh", "rollout.max_prompt_tokens", 4096),
        ("run_qwen36_35b_a3b_swe_8nodes.sh", "rollout.max_response_tokens", 96000 - 4096),
        ("run_qwen36_35b_a3b_swe_8nodes.sh", "rollout.max_turn_tokens", 32768),
        ("retool_qwen3_4b_rl.sh", "rewards.0.tool_bonus", 0.05),
        ("retool_qwen3_4b_rl.sh", "rollout.max_turn_tokens", 8192),
        ("retool_qwen3_4b_rl.sh", "rollout.max_response_tokens", 9216),
        ("search-r1/run_qwen2.5_3B.sh", "rewards.0.words", True),
        ("search-r1/run_qwen2.5_3B.sh", "rollout.function.syntax", "tags"),
        ("search-r1/run_qwen2.5_3B.sh", "rollout.stop", ["</search>", "</answer>"]),
        ("retool_qwen3_4b_rl.sh", "rollout.function.tools.0.type", "python"),
        ("search-r1/run_qwen2.5_3B.sh", "data.label_key", "reward_model.ground_truth.target"),
        ("search-r1/run_qwen2.5_3B.sh", "rollout.max_turn_tokens", 512),
        ("search-r1/run_qwen2.5_3B.sh", "rollout.max_response_tokens", 9216),
        ("tau-bench/run_qwen3_4B.sh", "rollout.max_turn_tokens", 1024),
        ("multi_agent/run-qwen3-30B-A3B-multi-agent.sh", "rollout.max_turn_tokens", 8192),
        ("multi_agent/run-qwen3-30B-A3B-multi-agent.sh", "rollout.max_response_tokens", 16384 - 4096),
        ("strands_sglang/strands_qwen3_8b.sh", "rollout.max_turn_tokens", 16384),
        ("fully_async/run-qwen3.5-9B-fully_async.sh", "trainer.old_log_probs", "trainer"),
        ("fully_async/run-qwen3.5-9B-fully_async.sh", "rollout.max_staleness", 3),
        ("rollout_buffer_example.sh", "trainer.old_log_probs", "rollout"),  # --keep-old-actor
        ("rollout_buffer_example.sh", "rollout.max_staleness", 1),
        ("rollout_buffer_example.sh", "algorithm.subtract_mean", False),
        ("run-qwen3-4B-base-sft.sh", "trainer.warmup_ratio", 0.1),
        ("run-qwen3-4B-base-sft.sh", "checkpoint.keep", "all"),
        ("run-glm4-9B.sh", "model.implementation", "transformers"),
        ("run-glm4-9B.sh", "trainer.parallel.fsdp", 4),
        ("run-deepseek-r1.sh", "trainer.parallel.reshard_after_forward", "always"),
        ("run-glm4.7-355B-A32B.sh", "trainer.parallel.reshard_after_forward", "always"),
        ("run_qwen36_35b_a3b_swe_8nodes.sh", "debug.save_rollouts", True),
        ("run-qwen3-4B-base-sft.sh", "data.apply_chat_template", True),
        ("run-qwen3-4B-base-sft.sh", "rollout.max_response_tokens", 16384),
        ("run-qwen3-4B-base-sft.sh", "trainer.min_lr_ratio", 0.1),
        ("run-qwen3-30B-A3B-int4.sh", "eval.datasets.0.name", "aime"),
        ("test_gspo.sh", "trainer.micro_batch_size", 1),
    ],
)
def test_what_scripts_ask_for(path: str, key: str, value: object) -> None:
    found: object = script(path).draft().values
    for part in key.split("."):
        found = found[int(part)] if isinstance(found, list) else found[part]  # type: ignore[index]
    assert found == value
