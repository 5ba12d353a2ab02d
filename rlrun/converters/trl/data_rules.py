"""Translates TRL's datasets and reward functions."""

from pathlib import PurePath
from typing import Any

from rlrun.converters.imports.import_draft import ImportDraft, how_to_write, own_reward
from rlrun.converters.trl.python_script import DatasetCall, RewardCall
from rlrun.converters.trl.trainer_rules import interval

_FILES = {"json": "jsonl", "jsonl": "jsonl", "parquet": "parquet"}
_MATH = ("accuracy_reward", "reasoning_accuracy_reward")
_OVERLONG = {"max_completion_len": 1280, "soft_punish_cache": 256}
"""The arguments that `trl grpo` gives get_soft_overlong_punishment."""
_HELD_OUT = (
    "dataset_test_split",
    "eval_dataset",
    "eval_steps",
    "num_generations_eval",
    "do_eval",
    "eval_on_start",
)


def data(draft: ImportDraft) -> None:
    """Sets the source of prompts. TRL reads the column `prompt`."""
    dataset = draft.value("train_dataset")
    if isinstance(dataset, DatasetCall):
        _set_rows(draft, "data", dataset, "train_dataset")
    elif draft.value("dataset_name"):
        split = str(draft.value("dataset_train_split"))
        flags = DatasetCall(str(draft.value("dataset_name")), draft.value("dataset_config"), split)
        _set_rows(draft, "data", flags, "dataset_name", "dataset_config", "dataset_train_split")
    elif draft.given("datasets"):
        draft.drop('write them as `type = "mixture"` under [data] (docs/spec/data.md)', "datasets")
        _placeholder(draft)
    else:
        _placeholder(draft)
    if any(_is_math(reward) for reward in _rewards(draft)):
        draft.set("data.label_key", "solution", (), "the column that TRL's accuracy_reward reads")


def _placeholder(draft: ImportDraft) -> None:
    draft.set("data.path", "prompts.jsonl", (), "the dataset cannot be read from the file: fill it in")
    draft.notes.append("data.path: the dataset cannot be read from the file: fill it in")


def _set_rows(draft: ImportDraft, table: str, dataset: DatasetCall, *names: str) -> None:
    """Sets a data source."""
    path = dataset.files or dataset.path
    suffix = PurePath(path).suffix[1:]
    kind = _FILES.get(dataset.path if dataset.files else suffix, "hf")
    if kind != "jsonl":
        draft.put(f"{table}.type", kind, *names)
    draft.put(f"{table}.path", path, *names)
    if kind == "hf":
        if dataset.name:
            draft.put(f"{table}.name", str(dataset.name), *names)
        if dataset.split and dataset.split != "train":
            # datasets has train[:100], rlrun train@[:100]
            split = str(dataset.split).replace("[", "@[", 1)
            draft.put(f"{table}.split", split, *names)
            if "%" in split:
                draft.drop("a slice counts rows, not per cent: change `split`", *names)
    if dataset.changes:
        changes = ", ".join(f".{change}(…)" for change in dataset.changes)
        draft.drop(
            f"the script changes the rows by {changes}: write the changed rows to a file, or use "
            "`data.prompt_key`, `prompt_template` and `system_prompt` (docs/spec/data.md)",
            *names,
        )


def rewards(draft: ImportDraft) -> None:
    """Sets the rewards; functions of the user's have to be rewritten in rlrun's form."""
    functions = _rewards(draft)
    weights: Any = draft.value("reward_weights")
    own = []
    for number, function in enumerate(functions):
        _set_reward(draft, f"rewards.{number}", function)
        if isinstance(function, RewardCall) and not function.is_trl:
            own.append(function.name)
        if isinstance(weights, list) and number < len(weights) and isinstance(weights[number], int | float):
            draft.put(f"rewards.{number}.weight", float(weights[number]), "reward_weights")
    if own:
        draft.drop(how_to_write(own), "reward_funcs")
    if not functions:
        draft.set("rewards.*.type", own_reward("reward"), (), "not in the file: fill it in")
        draft.notes.append("rewards: the reward functions cannot be read from the file: fill them in")
    for number, function in enumerate(functions):
        if isinstance(function, str) and not _is_known(function):
            draft.drop(
                f"{function} is a reward model: serve it, and set the `url` of the reward (docs/plugins.md)",
                "reward_funcs"
                if number or not draft.value("reward_model_name_or_path")
                else "reward_model_name_or_path",
            )


def _rewards(draft: ImportDraft) -> list[Any]:
    """Returns the rewards in TRL's order: a text is a reward model, or a name of `trl grpo`."""
    functions = draft.value("reward_funcs")
    functions = functions if isinstance(functions, list) else [functions]
    named = draft.value("reward_model_name_or_path")
    listed = [_from_flag(each) if isinstance(each, str) else each for each in functions]
    listed = [each for each in listed if each and isinstance(each, str | RewardCall)]
    return [str(named), *listed] if named else listed


def _from_flag(name: str) -> Any:
    """Returns a text of reward_funcs as a function, if it is one: TRL's own, or `module.function`."""
    if name in (*_MATH, "think_format_reward"):
        return RewardCall(name, is_trl=True)
    if name == "get_soft_overlong_punishment":
        return RewardCall(name, dict(_OVERLONG), is_trl=True)
    is_import = "/" not in name and all(part.isidentifier() for part in name.split(".")) and "." in name
    return RewardCall(name.rpartition(".")[2]) if is_import else name


def _is_math(reward: Any) -> bool:
    return isinstance(reward, RewardCall) and reward.is_trl and reward.name in _MATH


def _is_known(name: str) -> bool:
    return isinstance(_from_flag(name), RewardCall)


def _set_reward(draft: ImportDraft, table: str, reward: Any) -> None:
    """Sets one reward."""
    name = "reward_funcs"
    if isinstance(reward, str):
        draft.put(f"{table}.type", "remote", name, "reward_model_name_or_path", comment=f"serves {reward}")
        draft.set(f"{table}.url", "http://127.0.0.1:9000", (), "the server of the reward model: fill it in")
    elif _is_math(reward):
        draft.put(f"{table}.type", "math_verify", name, comment=reward.name)
    elif reward.is_trl and reward.name == "think_format_reward":
        draft.put(f"{table}.type", "format", name, comment=reward.name)
        draft.set(f"{table}.pattern", "<think>(?!.*<think>)(.*?)</think>.*", (), "TRL's pattern")
    elif reward.is_trl and reward.name == "get_soft_overlong_punishment":
        values = [reward.arguments.get(word, default) for word, default in _OVERLONG.items()]
        draft.put(f"{table}.type", "length", name, comment=reward.name)
        draft.put(f"{table}.max_tokens", values[0], name)
        draft.put(f"{table}.buffer", values[1], name)
    else:
        draft.put(f"{table}.type", own_reward(reward.name), name, comment="in rlrun's form")


def evaluation(draft: ImportDraft) -> None:
    """Sets the evaluation, which TRL does only with an `eval_strategy`."""
    if draft.value("eval_strategy") == "no":
        draft.values.pop("eval", None)
        draft.comments.pop("eval.before_training", None)
        draft.drop("no effect without eval_strategy", *_HELD_OUT, "eval_strategy")
        return
    dataset = draft.value("eval_dataset")
    table = "eval.datasets.0"
    if not isinstance(dataset, DatasetCall) and draft.value("dataset_name"):
        split = str(draft.value("dataset_test_split"))
        dataset = DatasetCall(str(draft.value("dataset_name")), draft.value("dataset_config"), split)
    if not isinstance(dataset, DatasetCall):
        draft.drop(
            "the held-out dataset cannot be read from the file: add [[eval.datasets]]",
            *_HELD_OUT,
            "eval_strategy",
        )
        draft.values.pop("eval", None)
        return
    draft.set(f"{table}.name", "held-out", (), "its name in metrics")
    _set_rows(draft, table, dataset, "eval_dataset", "dataset_name", "dataset_test_split")
    if draft.has("data.label_key"):
        draft.set(f"{table}.label_key", draft.values["data"]["label_key"], (), "as in training")
    steps = interval(draft, "eval_steps") if draft.value("eval_steps") is not None else None
    if draft.value("eval_strategy") == "steps" and steps is not None:
        draft.put("eval.interval", steps, "eval_steps", "eval_strategy")
    else:
        draft.drop("`eval.interval` counts steps: set it", "eval_strategy", "eval_steps")
    if not draft.has("eval.before_training"):
        draft.set("eval.before_training", False, (), "TRL's default of eval_on_start")
    if draft.value("num_generations_eval") is not None:
        draft.put("eval.samples_per_prompt", draft.count("num_generations_eval"), "num_generations_eval")
