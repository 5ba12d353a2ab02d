"""What is wrong with a model's and a data file's contents, told at the key that names them."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.job import preflight
from rlrun.runner.job.preflight import adapter_findings, check_files
from rlrun.specs.paths import RECIPES
from rlrun.specs.problems.findings import Problem, SpecError
from rlrun.specs.sections.job import Spec
from tests.converters.families.test_lora import QUERY, UP, make_adapter
from tests.tiny_models import make_tiny_model

QUESTIONS = [{"question": f"{n} + 1?", "answer": n + 1} for n in range(5)]
MATH = {"type": "math"}
VALUES = "model.layers.0.self_attn.v_proj"
BOTH = {QUERY: (64, 64), VALUES: (32, 64)}
LISTED = {"target_modules": ["q_proj", "v_proj"]}


def problems_of(
    folder: Path,
    rows: list[Any],
    *,
    sections: str = "",
    reward: dict[str, Any] | None = MATH,
    launch: bool = False,
    **data: Any,
) -> list[Problem]:
    """The problems of a job that reads these rows, whose files are otherwise fine, or else its warnings."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in data.items())
    rewards = f'[[rewards]]\ntype = "{reward["type"]}"\n' if reward else ""
    batch = "batch_size = 1\n" if reward else ""
    spec = folder / "job.toml"
    spec.write_text(
        '[model]\npath = "package:quickstart/model"\n'
        f'[data]\npath = "rows.jsonl"\n{keys}{rewards}'
        f"[rollout]\nmax_prompt_tokens = 48\nmax_response_tokens = 64\n{batch}"
        f"[trainer]\nsteps = 1\n{'' if reward else 'global_batch_size = 32'}\n{sections}"
    )
    try:
        return check_files(load_checked_spec([spec]), online=launch)
    except SpecError as error:
        return list(error.problems)


@pytest.mark.parametrize(
    ("rows", "data"),
    [
        (QUESTIONS, {"prompt_key": "question", "label_key": "answer"}),
        (QUESTIONS, {"prompt_template": "{question} Answer in \\boxed{}.", "label_key": "answer"}),
        ([{"prompt": "1?", "label": 0}], {}),
        ([{"prompt": f"{n}?", "label": n} for n in range(40)] + ['{"torn'], {}),
    ],
    ids=["named keys", "template", "a label of 0", "one broken row of many"],
)
def test_files_that_can_be_used_have_no_problems(
    tmp_path: Path, rows: list[Any], data: dict[str, Any]
) -> None:
    assert problems_of(tmp_path, rows, **data) == []


def test_rows_under_other_keys_name_the_keys_to_set(tmp_path: Path) -> None:
    [problem] = problems_of(tmp_path, QUESTIONS)
    assert problem.key == "data.path"
    assert problem.line == 4
    assert problem.message.startswith("5 of the 5 rows looked at cannot be used: rows.jsonl:1: ")
    assert problem.message.endswith("""it has 'question', 'answer': set prompt_key = "question\"""")
    [problem] = problems_of(tmp_path, QUESTIONS, prompt_key="question")
    assert "reward 'math' compares with the row's label, and the row has none" in problem.message
    assert problem.cure == 'the rows have question, answer: label_key = "answer"'


def test_a_reward_without_need_of_a_label_takes_rows_without_one(tmp_path: Path) -> None:
    rows = [{"prompt": "Say anything."}]
    assert problems_of(tmp_path, rows, reward={"type": "random"}) == []
    for needy in ("exact_match", "f1", "gpqa", "math_verify", "deepscaler", "dapo", "code"):
        [problem] = problems_of(tmp_path, rows, reward={"type": needy})
        assert f"reward '{needy}'" in problem.message


@pytest.mark.parametrize(
    ("algorithm", "row", "message"),
    [
        ("sft", {"prompt": "1?", "answer": "2"}, "no demonstration; set response_key"),
        ("dpo", {"prompt": "1?", "answer": "2"}, "no demonstration; set response_key"),
        ("sft", {"prompt": [{"role": "user", "content": "1?"}]}, "no demonstration; set response_key"),
        ("kto", {"prompt": "1?", "label": True}, "no demonstration; set response_key"),
        (
            "kto",
            {"prompt": "1?", "label": "maybe"},
            "has the label 'maybe': the algorithm needs true or false",
        ),
    ],
)
def test_demonstrations_are_asked_for(
    tmp_path: Path, algorithm: str, row: dict[str, Any], message: str
) -> None:
    [problem] = problems_of(tmp_path, [row], reward=None, sections=f'[algorithm]\ntype = "{algorithm}"\n')
    assert message in problem.message
    if "answer" in row:
        assert problem.cure == 'the rows have prompt, answer: response_key = "answer"'


def test_a_chat_that_ends_with_an_answer_is_a_demonstration(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}]
    sections = '[algorithm]\ntype = "sft"\n'
    assert problems_of(tmp_path, [{"prompt": chat}], reward=None, sections=sections) == []


def test_a_column_that_some_rows_leave_empty_is_not_proposed_again(tmp_path: Path) -> None:
    rows = [{"question": "1?", "answer": 1}, {"question": "2?", "answer": None}, {"question": "3?"}]
    [problem] = problems_of(tmp_path, rows, prompt_key="question", label_key="answer")
    assert problem.message.startswith("2 of the 3 rows")
    assert problem.cure == "label_key is 'answer' already: fill that in, or leave the rows without it out"


def test_a_chat_that_ends_with_an_answer_is_no_prompt(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}]
    [problem] = problems_of(tmp_path, [{"prompt": chat, "label": "2"}])
    assert "its messages end with an answer" in problem.message


@pytest.mark.parametrize("label", [["2"], {"value": 2}, "", " "])
def test_a_label_that_no_answer_can_equal_is_refused(tmp_path: Path, label: object) -> None:
    rows = [{"prompt": "1?", "label": label}]
    for reward in ("math", "exact_match", "f1", "math_verify", "deepscaler", "dapo"):
        [problem] = problems_of(tmp_path, rows, reward={"type": reward})
        assert f"reward '{reward}' compares with" in problem.message


def test_held_out_data_are_looked_at_too(tmp_path: Path) -> None:
    (tmp_path / "held-out.jsonl").write_text('{"text": "1?"}\n')
    held_out = '[[eval.datasets]]\nname = "a"\npath = "held-out.jsonl"\n'
    [problem] = problems_of(tmp_path, [{"prompt": "1?", "label": 0}], sections=held_out)
    assert problem.key == "eval.datasets.0.path"
    assert 'set prompt_key = "text"' in problem.message


def test_a_task_that_does_not_exist_is_guessed() -> None:
    with pytest.raises(SpecError) as caught:
        check_files(load_checked_spec([RECIPES / "quickstart.toml"], ["data.task=chain_sun"]))
    [problem] = caught.value.problems
    assert (problem.key, problem.message) == (
        "data.task",
        "reasoning-gym has no task 'chain_sun'; did you mean 'chain_sum'?",
    )


def test_a_setting_that_a_task_does_not_have_is_guessed() -> None:
    changed = "data.task_params={ min_term = 4, seed = 3 }"
    with pytest.raises(SpecError) as caught:
        check_files(load_checked_spec([RECIPES / "quickstart.toml"], [changed]))
    [problem] = caught.value.problems
    assert (problem.key, problem.message) == (
        "data.task",
        "reasoning-gym's task 'chain_sum' has no setting 'min_term' (task_params); did you mean 'min_terms'?",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config.json": {"model_type": "gemma7"}}, "model_type 'gemma7' is not supported"),
        ({"tokenizer.json": None}, "has no tokenizer"),
        ({"chat_template.jinja": None, "tokenizer_config.json": {}}, "data.apply_chat_template = false"),
    ],
    ids=["family", "tokenizer", "chat template"],
)
def test_a_model_that_cannot_be_used_is_named(
    tmp_path: Path, tiny_model: Path, change: dict[str, Any], message: str
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for file in tiny_model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for name, content in change.items():
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_text(json.dumps(content))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1?", "label": 0}\n')
    spec = tmp_path / "job.toml"
    spec.write_text(
        '[model]\npath = "model"\n[data]\npath = "rows.jsonl"\n[[rewards]]\ntype = "math"\n'
        "[rollout]\nmax_prompt_tokens = 48\nmax_response_tokens = 64\n[trainer]\nsteps = 1\n"
    )
    with pytest.raises(SpecError) as caught:
        check_files(load_checked_spec([spec]))
    [problem] = caught.value.problems
    assert problem.key == "model.path"
    assert message in problem.message


MOE = {"model_type": "qwen3_moe", "vocab_size": 8, "hidden_size": 8, "intermediate_size": 8}
MOE |= {"num_hidden_layers": 1, "num_attention_heads": 8}


@pytest.mark.parametrize(
    ("config", "engine", "message"),
    [
        ({"model_type": "gemma7"}, "sglang", "model_type 'gemma7' is not supported"),
        (MOE, "sglang", ""),
        ({"model_type": "gemma3", "text_config": {"hidden_size": 8}}, "sglang", ""),
        (
            {"model_type": "gemma3_text", "final_logit_softcapping": 30.0},
            "sglang",
            "final_logit_softcapping = 30.0 in config.json is not supported for gemma3_text",
        ),
        (MOE | {"model_type": "gpt_oss"}, "native", ""),
    ],
)
def test_a_family_on_the_hub_is_checked_by_its_config_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any], engine: str, message: str
) -> None:
    implementation = "transformers" if "gemma3" in str(config["model_type"]) else "torchtitan"
    hub, online = tmp_path / "hub", []
    hub.mkdir()
    monkeypatch.setattr(preflight, "why_not_importable", lambda python: None)
    (hub / "config.json").write_text(json.dumps(config))
    monkeypatch.setattr("rlrun.runner.job.preflight.cached_config", lambda name, revision: hub)
    monkeypatch.setattr(
        "rlrun.runner.job.preflight.download",
        lambda name, files, revision, say: online.append(files) or hub,
    )
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1?", "label": 0}\n')
    spec = tmp_path / "job.toml"
    spec.write_text(
        f'[model]\npath = "acme/model"\nimplementation = "{implementation}"\n'
        '[data]\npath = "rows.jsonl"\n[[rewards]]\ntype = "math"\n'
        f'[engine]\ntype = "{engine}"\n'
        "[rollout]\nmax_prompt_tokens = 48\nmax_response_tokens = 64\n[trainer]\nsteps = 1\n"
    )
    for is_launch in (False, True):
        try:
            check_files(load_checked_spec([spec]), online=is_launch)
            assert not message
        except SpecError as error:
            [problem] = error.problems
            assert (problem.key, message in problem.message) == ("model.path", True)
    assert online == [["config.json"]]


def test_a_launch_asks_the_interpreter_of_its_servers(tmp_path: Path) -> None:
    interpreter = tmp_path / "python"
    answers = "case \"$2\" in *metadata*) echo '1.0 /sglang';; *) echo '[\"mem-fraction\"]';; esac"
    interpreter.write_text(f"#!/bin/sh\n{answers}\n")
    interpreter.chmod(0o755)
    engine = f'[engine]\ntype = "sglang"\npython = "{interpreter}"\n[engine.sglang]\nmem_fractoin = 0.5\n'
    keys = {"prompt_key": "question", "label_key": "answer"}
    assert problems_of(tmp_path, QUESTIONS, sections=engine, **keys) == []
    loaded = load_checked_spec([tmp_path / "job.toml"])
    with pytest.raises(SpecError, match="has no argument --mem-fractoin"):
        check_files(loaded, online=True)


@pytest.mark.parametrize("name", ["wandb", "mlflow", "trackio", "tensorboard"])
@pytest.mark.parametrize("launch", [False, True])
def test_a_tracker_whose_package_is_not_installed_is_refused_by_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, launch: bool
) -> None:
    tracker = f'[[trackers]]\ntype = "prometheus"\n[[trackers]]\ntype = "{name}"\n'
    keys = {"prompt_key": "question", "label_key": "answer"}
    assert problems_of(tmp_path, QUESTIONS, sections=tracker, **keys) == []
    monkeypatch.setattr("rlrun.runner.job.preflight.find_spec", lambda package: None)
    [problem] = problems_of(tmp_path, QUESTIONS, sections=tracker, launch=launch, **keys)
    assert problem.key == "trackers.1.type"
    with pytest.raises(SpecError) if launch else nullcontext():
        check_files(load_checked_spec([tmp_path / "job.toml"]), online=launch)
    assert f'the tracker "{name}" needs' in problem.message
    assert problem.cure is not None
    assert problem.cure.startswith("pip install 'rlrun[")


def test_settings_that_need_torchao_name_the_extra_that_installs_it(tmp_path: Path, monkeypatch: Any) -> None:
    rows = [{"prompt": "1?", "label": 0}]
    section = 'optimizer = "adamw_8bit"\n'
    assert problems_of(tmp_path, rows, sections=section) == []
    monkeypatch.setattr(preflight, "find_spec", lambda package: None)
    [problem] = problems_of(tmp_path, rows, sections=section)
    assert problem.key == "trainer.optimizer"
    assert "rlrun[low-precision]" in str(problem.cure)


def test_what_an_object_store_and_the_hub_need_is_named(tmp_path: Path, monkeypatch: Any) -> None:
    rows = [{"prompt": "1?", "label": 0}]
    section = '\n[checkpoint]\nmirror = "s3://bucket/team"\npush = "acme/small"\n'
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    assert problems_of(tmp_path, rows, sections=section) == []
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    monkeypatch.setattr(preflight, "find_spec", lambda package: None if package == "obstore" else package)
    push, mirror = problems_of(tmp_path, rows, sections=section)
    assert (push.key, mirror.key) == ("checkpoint.push", "checkpoint.mirror")
    assert "hf auth login" in str(push.cure)
    assert "rlrun[storage]" in str(mirror.cure)


def test_a_key_that_names_a_column_no_row_has_is_refused(tmp_path: Path) -> None:
    keys = {"prompt_key": "question", "label_key": "anser"}
    [problem] = problems_of(tmp_path, QUESTIONS, reward={"type": "random"}, **keys)
    assert (problem.key, problem.suggestion) == ("data.label_key", "answer")
    assert "'anser'" in problem.message
    rows = [{"prompt": "1?", "reward_model": {"ground_truth": "1"}}]
    assert problems_of(tmp_path, rows, label_key="reward_model.ground_truth") == []
    rows = [{"prompt": "1?", "reward.model": {"ground_truth": "1"}}]
    assert problems_of(tmp_path, rows, label_key="reward.model.ground_truth") == []


def test_prompts_that_are_all_too_long_are_refused(tmp_path: Path) -> None:
    rows = [{"prompt": "1 + 2 + 3 = " * 30, "label": 6}]
    [problem] = problems_of(tmp_path, rows)
    assert problem.key == "rollout.max_prompt_tokens"
    assert "the shortest of the 1 looked at has" in problem.message
    assert problems_of(tmp_path, [*rows, {"prompt": "1", "label": 1}]) == []


def test_fewer_rows_than_a_step_takes_are_a_warning(tmp_path: Path) -> None:
    problems_of(tmp_path, QUESTIONS, prompt_key="question", label_key="answer")
    for size, warned in ((5, False), (6, True)):
        loaded = load_checked_spec([tmp_path / "job.toml"], [f"rollout.batch_size={size}"])
        messages = [problem.message for problem in check_files(loaded)]
        assert messages == warned * ["a step takes 6 prompts, and the data has 5: each step repeats some"]


@pytest.mark.parametrize(
    ("reason", "expected"), [(None, []), ("sglang is not installed", ["engine.type"])], ids=["here", "absent"]
)
def test_servers_that_this_host_cannot_start_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: str | None, expected: list[str]
) -> None:
    monkeypatch.setattr(preflight, "why_not_importable", lambda python: reason)
    rows = [{"prompt": "1?", "label": 0}]
    for launch in (False, True):
        found = problems_of(tmp_path, rows, sections='[engine]\ntype = "sglang"\n', launch=launch)
        assert [problem.key for problem in found] == expected


def test_an_adapter_of_the_policy_s_servers_needs_no_server_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "why_not_importable", lambda python: "sglang is not installed")
    spec = {"model": {"path": "/m"}, "data": {}, "engine": {"type": "sglang", "python": "/other/python"}}
    judge = {"name": "judge", "type": "sglang", "adapter": "/adapter"}
    spec |= {"trainer": {"steps": 1, "lora": {"rank": 4}}, "engines": [judge]}
    assert list(preflight._servers(Spec.model_validate(spec))) == []
    judge["path"] = "/m"  # a server of its own
    [found] = preflight._servers(Spec.model_validate(spec))
    assert found.path == ("engines", 0, "type")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def findings(model: Path, **sections: Any) -> list[tuple[str, str]]:
    """The keys and messages of a job on an SGLang server that gets adapters alone."""
    spec = {"model": {"path": str(model)}, "data": {}, "engine": {"type": "sglang"}}
    spec |= {"trainer": {"steps": 1, "lora": {"rank": 4}}}
    found = adapter_findings(Spec.model_validate(spec | sections))
    return [(".".join(map(str, finding.path)), finding.message) for finding in found]


@pytest.mark.parametrize(
    ("modules", "settings", "message"),
    [
        (BOTH, LISTED, None),
        ({QUERY: (64, 32)}, LISTED, "belongs to another model"),
        (BOTH, LISTED | {"rank_pattern": {"q_proj": 1}}, "sets rank_pattern"),
        (BOTH, {"target_modules": ".*_proj"}, "SGLang needs a list of matrices as target_modules"),
        ({QUERY: (64, 64)}, LISTED, "of q_proj without both q_proj and v_proj"),
        ({UP: (96, 64)}, LISTED, "of up_proj without gate_proj"),
    ],
)
@pytest.mark.parametrize("has_path", [False, True])
def test_a_judge_that_a_server_cannot_serve(  # noqa: PLR0917
    model: Path, modules: Any, settings: Any, message: str | None, has_path: bool, tmp_path: Path
) -> None:
    folder, _ = make_adapter(tmp_path / "adapter", modules, **settings)
    engine = {"name": "judge", "type": "sglang", "adapter": str(folder)}
    engine |= {"path": str(model)} if has_path else {}
    found = findings(model, engines=[engine])
    assert [key for key, _ in found] == ([] if message is None else ["engines.0.adapter"])
    assert all(str(message) in text for _, text in found)


def test_a_native_engine_merges_any_matrices(model: Path, tmp_path: Path) -> None:
    folder, _ = make_adapter(tmp_path / "adapter", {UP: (96, 64)})
    engine = {"name": "judge", "type": "native", "adapter": str(folder), "path": str(model)}
    assert findings(model, engines=[engine]) == []


def test_an_adapter_of_another_model_of_the_hub(tmp_path: Path) -> None:
    folder, _ = make_adapter(tmp_path / "adapter", BOTH, base_model_name_or_path="acme/base", **LISTED)
    engine = {"name": "judge", "type": "native", "adapter": str(folder), "path": "acme/chat"}
    [(key, message)] = findings(tmp_path, engines=[engine])
    assert (key, message) == ("engines.0.adapter", "was trained on acme/base, and the model is acme/chat")


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ({}, "has rank 8, and trainer.lora.rank is 4"),
        ({"path": True}, None),
    ],
)
def test_a_teacher_that_the_policys_adapters_cannot_hold(
    model: Path, teacher: dict[str, Any], message: str | None, tmp_path: Path
) -> None:
    folder, _ = make_adapter(tmp_path / "adapter", BOTH, rank=8)
    section = {"adapter": str(folder)} | {name: str(model) for name in teacher}
    found = findings(model, teacher=section)
    assert [key for key, _ in found] == ([] if message is None else ["teacher.adapter"])
    assert all(str(message) in text for _, text in found)
