"""Translates verl's settings about data, rewards, evaluation, engines, adapters and trackers."""

from pathlib import PurePath
from typing import Any

from rlrun.converters.imports.import_draft import ImportDraft, how_to_write, own_reward
from rlrun.converters.imports.spec_draft import plain_name, why_reserved

_TRACKERS = ("wandb", "tensorboard", "mlflow", "trackio")
_ROLLOUT = "actor_rollout_ref.rollout"
_SGLANG = f"{_ROLLOUT}.engine_kwargs.sglang"
_FUNCTIONS = ("reward.custom_reward_function", "custom_reward_function")
_OVERLONG = ("reward.reward_kwargs.overlong_buffer_cfg", "reward_model.reward_kwargs.overlong_buffer_cfg")


def data(draft: ImportDraft) -> None:
    """Sets the training data. The label of verl's rows is in a table of the column `reward_model`."""
    files = _files(draft.value("data.train_files"))
    if len(files) == 1:
        _set_file(draft, "data", files[0], "data.train_files")
    else:
        draft.put("data.type", "mixture", "data.train_files")
        for number, file in enumerate(files):
            _set_file(draft, f"data.sources.{number}", file, "data.train_files")
        if draft.has("data.prompt_key"):
            column = draft.values["data"].pop("prompt_key")
            for number in range(len(files)):
                draft.put(f"data.sources.{number}.prompt_key", column, "data.prompt_key")
    draft.notes.append(
        "data: verl's rows have the label in the table `reward_model`: if yours do, set "
        '`label_key = "reward_model.ground_truth"`'
    )
    for name in [name for name in draft.settings if name.startswith("data.apply_chat_template_kwargs.")]:
        value = draft.value(name)
        if isinstance(value, bool | int | float | str):
            draft.put(f"model.chat_template_args.{name.rpartition('.')[2]}", value, name)
        else:
            draft.drop("set model.chat_template_args by hand", name)
    for name in ("data.train_max_samples", "data.val_max_samples"):
        if draft.given(name) and draft.number(name) > 0:
            draft.drop('a slice of the rows: `path = "train.parquet@[:100]"`', name)


def _files(value: Any) -> list[str]:
    files = value if isinstance(value, list) else [value]
    return [str(file) for file in files if file] or ["train.parquet"]


def _set_file(draft: ImportDraft, table: str, file: str, name: str) -> None:
    if not file.endswith((".json", ".jsonl")):
        draft.put(f"{table}.type", "parquet", name)
    elif table != "data":
        draft.put(f"{table}.type", "jsonl", name)
    draft.put(f"{table}.path", file, name)


def evaluation(draft: ImportDraft) -> None:
    """Sets the evaluation on val_files: verl's default is one greedy answer to each prompt."""
    names = [name for name in draft.settings if draft.table.row(name).rule == "evaluation"]
    every = draft.number("trainer.test_freq") > 0
    if not (
        draft.given("data.val_files")
        and draft.value("data.val_files")
        and (every or draft.is_on("trainer.val_before_train"))
    ):
        draft.values.pop("eval", None)
        draft.drop("no effect without data.val_files", *names, "data.val_files", "trainer.val_before_train")
        return
    taken: list[str] = []
    for number, file in enumerate(_files(draft.value("data.val_files"))):
        table, path = f"eval.datasets.{number}", PurePath(file)
        stem = path.parent.name if path.stem in ("test", "val", "validation", "train") else path.stem
        plain = plain_name(stem, "held-out")
        taken.append(plain if plain not in taken else f"{plain}-{number}")
        draft.set(f"{table}.name", taken[-1], (), "its name in metrics")
        _set_file(draft, table, file, "data.val_files")
    if every:
        draft.put("eval.interval", draft.count("trainer.test_freq"), "trainer.test_freq")
    values = f"{_ROLLOUT}.val_kwargs"
    draft.put("eval.samples_per_prompt", draft.count(f"{values}.n"), f"{values}.n")
    sampled = draft.is_on(f"{values}.do_sample")
    temperature = draft.number(f"{values}.temperature") if sampled else 0.0
    draft.put("eval.temperature", temperature, f"{values}.temperature", f"{values}.do_sample")
    if 0 < draft.number(f"{values}.top_p") <= 1:
        draft.put("eval.top_p", draft.number(f"{values}.top_p"), f"{values}.top_p")


def rewards(draft: ImportDraft) -> None:
    """Sets the reward, and DAPO's punishment of long responses."""
    table = next((name for name in _FUNCTIONS if draft.value(f"{name}.path")), None)
    if table is not None:
        names = (f"{table}.path", f"{table}.name")
        function = str(draft.value(names[1]) or "compute_score")
        draft.put("rewards.0.type", own_reward(function), *names, comment="in rlrun's form")
        draft.drop(how_to_write([function]), *names)
    else:
        draft.set("rewards.0.type", "math", (), "verl chooses by the row's data_source")
        draft.notes.append(
            "rewards: verl chooses the reward by `data_source` of each row; choose yours from "
            "`rlrun plugins list`, or set `type_key`"
        )
    draft.drop(
        "`rewards.type_key` names a metadata key with the name of the row's reward", "data.reward_fn_key"
    )
    for overlong in _OVERLONG:
        if draft.is_on(f"{overlong}.enable") and not draft.has("rewards.1.type"):
            _overlong(draft, overlong)
    draft.drop_unused(
        "rlrun adds the weighted rewards of `[[rewards]]`",
        "reward.reward_manager.name",
        "reward_model.reward_manager",
    )


def _overlong(draft: ImportDraft, table: str) -> None:
    response = draft.count("data.max_response_length")
    buffer = min(draft.count(f"{table}.len"), response)
    draft.put("rewards.1.type", "length", f"{table}.enable")
    draft.put("rewards.1.max_tokens", response, "data.max_response_length")
    draft.put("rewards.1.buffer", buffer, f"{table}.len")
    draft.put("rewards.1.weight", draft.number(f"{table}.penalty_factor", 1.0), f"{table}.penalty_factor")


def engine(draft: ImportDraft) -> None:
    """Sets the engine; SGLang's own arguments are copied."""
    name, memory = f"{_ROLLOUT}.name", f"{_ROLLOUT}.gpu_memory_utilization"
    if draft.value(name) == "sglang":
        draft.put("engine.type", "sglang", name)
    else:
        draft.drop("SGLang servers or rlrun's own engines take its place (docs/engines.md)", name)
    size = f"{_ROLLOUT}.tensor_model_parallel_size"
    if draft.given(size) and draft.count(size) > 1:
        draft.put("engine.tensor", draft.count(size), size)
    if draft.given(memory) and 0 < draft.number(memory) < 1:
        draft.put("engine.sglang.mem_fraction_static", draft.number(memory), memory)
    for setting in draft.given(*(each for each in draft.settings if each.startswith(f"{_SGLANG}."))):
        argument = setting.name.rpartition(".")[2]
        if (why := why_reserved(argument)) is not None:
            draft.drop(why, setting.name)
        elif setting.value is not None:
            draft.put(f"engine.sglang.{argument}", setting.value, setting.name)


def lora(draft: ImportDraft) -> None:
    """Sets the adapters, by the names of FSDP's or of Megatron's engine."""
    model = "actor_rollout_ref.model"
    for rank, alpha in (
        (f"{model}.lora_rank", f"{model}.lora_alpha"),
        (f"{model}.lora.rank", f"{model}.lora.alpha"),
    ):
        if draft.number(rank) > 0 and not draft.has("trainer.lora.rank"):
            draft.put("trainer.lora.rank", draft.count(rank), rank)
            draft.put("trainer.lora.alpha", draft.number(alpha), alpha)
    targets: Any = draft.value(f"{model}.target_modules")
    names = [str(name) for name in targets] if isinstance(targets, list) else []
    if names and draft.has("trainer.lora.rank"):
        draft.put("trainer.lora.targets", names, f"{model}.target_modules")


def trackers(draft: ImportDraft) -> None:
    """Sets the trackers."""
    value: Any = draft.value("trainer.logger")
    kinds = value if isinstance(value, list) else [value]
    known = [str(kind) for kind in kinds if kind in _TRACKERS] if draft.given("trainer.logger") else []
    project = str(draft.value("trainer.project_name"))
    for number, kind in enumerate(known):
        draft.put(f"trackers.{number}.type", kind, "trainer.logger")
        if kind in ("wandb", "trackio", "mlflow") and draft.given("trainer.project_name"):
            key = "experiment" if kind == "mlflow" else "project"
            draft.put(f"trackers.{number}.{key}", project, "trainer.project_name")
    if len(known) < len([kind for kind in kinds if kind not in ("console", "file")]):
        draft.drop(f"has no counterpart (available: {', '.join(_TRACKERS)})", "trainer.logger")
    draft.drop_unused(
        "the console and metrics.jsonl always get the metrics", "trainer.logger", "trainer.project_name"
    )
