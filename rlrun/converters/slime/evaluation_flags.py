"""Translates slime's flags about evaluations on held-out data."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from rlrun.converters.slime.draft import Draft, file_settings
from rlrun.converters.slime.flag_table import flag_table
from rlrun.converters.slime.sources_flags import named_reward, set_rows

_DATASET_KEYS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "n_samples_per_eval_prompt": ("samples_per_prompt", int),
    "temperature": ("temperature", float),
    "top_p": ("top_p", float),
    "top_k": ("top_k", int),
    "max_response_len": ("max_response_tokens", int),
    "min_new_tokens": ("min_response_tokens", int),
    "stop": ("stop", list),
    "stop_token_ids": ("stop_token_ids", list),
}
"""Maps settings of a dataset in --eval-config to keys and their types."""
_COLUMNS = (
    ("prompt_key", "input_key", "--eval-input-key", "--input-key", "input"),
    ("label_key", "label_key", "--eval-label-key", "--label-key", None),
    ("tools_key", "tool_key", "--eval-tool-key", "--tool-key", "tools"),
    ("metadata_key", "metadata_key", "--metadata-key", "--metadata-key", None),
)
_BY_HAND = {
    "metadata_overrides": "add these entries to the metadata of its rows",
}
"""Settings of a dataset that the user has to translate."""
_KNOWN_SETTINGS = {"name", "path", "rm_type", "metadata_overrides", "custom_generate_function_path"}
_KNOWN_SETTINGS |= {"custom_rm_path"}
_KNOWN_SETTINGS |= {*_DATASET_KEYS, "apply_chat_template", *(key for _, key, *_ in _COLUMNS)}


def evaluation(draft: Draft) -> None:
    """Sets the datasets, given as names and paths or in a file, and their common settings."""
    names = [row.name for row in flag_table().values() if row.rule == "evaluation"]
    datasets = _datasets(draft) if draft.algorithm != "sft" and draft.given("--eval-interval") else []
    if not datasets:
        for flag in draft.given(*names):
            draft.note(flag, "no effect: slime evaluates only with --eval-interval and a dataset")
        return
    for number, dataset in enumerate(datasets):
        _set_dataset(draft, f"eval.datasets.{number}", dataset)
    kinds: dict[str, Callable[[float], Any]] = {
        "interval": int,
        "max_prompt_tokens": int,
        "max_response_tokens": int,
        "min_response_tokens": int,
        "temperature": float,
        "top_p": float,
    }
    for row in (flag_table()[name] for name in names):
        key = (row.key or "").removeprefix("eval.")
        if key in kinds and row.name in draft.flags:
            draft.set(row.key or "", kinds[key](draft.number(row.name, 1)), (row.name,))
    if draft.has("rollout.max_prompt_tokens") and not draft.has("eval.max_prompt_tokens"):
        draft.notes.append(
            "eval.max_prompt_tokens: slime evaluates prompts of any length without --eval-max-prompt-len; "
            "rlrun drops those of more than rollout.max_prompt_tokens, and reports their number"
        )
    _first_evaluation(draft)
    _turns(draft)
    greedy = _greedy(draft)
    samples = 1 if greedy else draft.whole("--n-samples-per-eval-prompt", 1)
    comment = "greedy samples are all the same" if greedy else ""
    draft.set("eval.samples_per_prompt", samples, ("--n-samples-per-eval-prompt",), comment)


def _first_evaluation(draft: Draft) -> None:
    """Sets whether the initial model is evaluated: never by train_async.py, always in a job without steps."""
    only = draft.given("--num-rollout") and draft.whole("--num-rollout", 1) < 1
    for flag in draft.given("--skip-eval-before-train"):
        if only:
            draft.note(flag, "no effect: without a step slime evaluates in any case")
        else:
            draft.set("eval.before_training", False, (flag.name,))
    if draft.is_async and not only and not draft.has("eval.before_training"):
        comment = "train_async.py does not evaluate before training"
        draft.set("eval.before_training", False, (), comment)


def _turns(draft: Draft) -> None:
    """Sets the length of all turns of an evaluation together; --eval-max-response-len is that of one turn."""
    rollout = draft.values.get("rollout", {})
    for flag in draft.given("--eval-max-response-len") if "max_turn_tokens" in rollout else ():
        longest = max(rollout["max_response_tokens"], draft.count(flag.name, 1))
        draft.set("eval.max_response_tokens", longest, (flag.name,), "all turns together")
        if draft.count(flag.name, 1) != rollout["max_turn_tokens"]:
            draft.note(flag, "rollout.max_turn_tokens limits the turns of evaluations too")


def _greedy(draft: Draft) -> bool:
    """Returns whether evaluations are greedy, and translates --eval-top-k."""
    for flag in draft.given("--eval-top-k"):
        if draft.whole(flag.name, -1) == 1:
            draft.set("eval.temperature", 0.0, (flag.name,), f"{flag} is greedy")
            return True
        draft.set("eval.top_k", draft.whole(flag.name, -1), (flag.name,))
    return draft.has("eval.temperature") and not draft.number("--eval-temperature", 1.0)


def _datasets(draft: Draft) -> list[Mapping[str, Any]]:
    """Returns each dataset's settings; --eval-config takes precedence over --eval-prompt-data."""
    words = draft.flags["--eval-prompt-data"].values if "--eval-prompt-data" in draft.flags else []
    if "--eval-config" in draft.flags:
        for flag in draft.given("--eval-prompt-data"):
            draft.note(flag, "--eval-config takes precedence")
        return _configured(draft)
    words = ["aime", *words] if len(words) == 1 else words
    if len(words) % 2:
        draft.note(
            draft.flags["--eval-prompt-data"],
            "the last word is not part of a pair of name and path, and is left out",
        )
    return [{"name": name, "path": path} for name, path in zip(words[::2], words[1::2], strict=False)]


def _configured(draft: Draft) -> list[Mapping[str, Any]]:
    """Returns the settings of the datasets in the file of --eval-config, the file's defaults included."""
    settings = _table(file_settings(draft, "--eval-config"))
    settings = _table(settings.get("eval")) or settings
    datasets = settings.get("datasets") or []
    if isinstance(datasets, dict):
        datasets = [{"name": name, **_table(dataset)} for name, dataset in datasets.items()]
    defaults = _table(settings.get("defaults"))
    complete = [_with_new_names({**defaults, **_table(dataset)}) for dataset in datasets]
    return [dataset for dataset in complete if dataset.get("path")]


def _with_new_names(dataset: dict[str, Any]) -> dict[str, Any]:
    """Returns a dataset's settings; older versions of slime call its `input_key` `prompt_key`."""
    return {"input_key" if name == "prompt_key" else name: value for name, value in dataset.items()}


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _set_dataset(draft: Draft, table: str, dataset: Mapping[str, Any]) -> None:
    source = "--eval-config" if "--eval-config" in draft.flags else "--eval-prompt-data"
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", str(dataset.get("name", ""))).lstrip("-._") or "eval"
    draft.set(f"{table}.name", name, (source,))
    set_rows(draft, table, str(dataset["path"]), source)
    for key, theirs, eval_flag, data_flag, default in _COLUMNS:
        value = dataset.get(theirs) or draft.text(eval_flag) or draft.text(data_flag) or default
        if value is not None:
            draft.set(
                f"{table}.{key}",
                value,
                (source if theirs in dataset else eval_flag if eval_flag in draft.flags else data_flag,),
            )
    for theirs, (ours, kind) in _DATASET_KEYS.items():
        if (value := dataset.get(theirs)) is not None and (theirs, value) != ("top_k", 1):
            value = [value] if kind is list and not isinstance(value, list) else value
            draft.set(f"{table}.{ours}", kind(value), (source,))
    if dataset.get("top_k") == 1:
        draft.set(f"{table}.temperature", 0.0, (source,), "top_k 1 is greedy")
        draft.set(f"{table}.samples_per_prompt", 1, (source,))
    chat = "--apply-chat-template"
    draft.set(
        f"{table}.apply_chat_template", bool(dataset.get("apply_chat_template", chat in draft.flags)), (chat,)
    )
    _dataset_reward(draft, table, dataset)
    if function := dataset.get("custom_generate_function_path"):
        draft.leave("rollouts", f"{table}.function.type", draft.flags[source], function=str(function))
    for setting, why in _BY_HAND.items():
        if dataset.get(setting):
            draft.note(draft.flags[source], f"{name}: {setting}: {why}")
    for setting in sorted(set(dataset) - _KNOWN_SETTINGS):
        draft.note(draft.flags[source], f"{name}: {setting} cannot be set for a single dataset")


def _dataset_reward(draft: Draft, table: str, dataset: Mapping[str, Any]) -> None:
    """Sets a dataset's own reward: that of its rm_type, or that of training with --eval-reward-key."""
    kind, key = str(dataset.get("rm_type") or ""), draft.text("--eval-reward-key")
    if function := dataset.get("custom_rm_path"):
        flag = draft.flags["--eval-config"]
        draft.leave("rewards", f"{table}.rewards.0.type", flag, function=str(function))
        return
    training = draft.values.get("rewards", [])
    if custom := draft.given("--custom-rm-path"):
        for flag in draft.given("--eval-reward-key", *(["--eval-config"] if kind else [])):
            draft.note(flag, f"no effect: in slime {custom[0].name} scores the evaluation's samples, too")
        return
    if kind and kind != draft.text("--rm-type"):
        reward = named_reward(draft, kind)
        if reward is None:
            flag = draft.flags["--eval-config"]
            draft.note(flag, f"there is no reward {kind}: write a plugin, and set it as `{table}.rewards`")
            return
        sources: tuple[str, ...] = ("--eval-config",)
    elif key and training and key != draft.text("--reward-key"):
        reward, sources = {name: value for name, value in training[0].items() if name != "note"}, ()
    else:
        return
    if key or draft.text("--reward-key"):
        reward["key"] = key or draft.text("--reward-key")
        sources += ("--eval-reward-key" if key else "--reward-key",)
    draft.set(f"{table}.rewards", [reward], sources)
