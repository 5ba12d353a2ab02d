"""Translates prime-rl's sources of tasks, its evaluations, checkpoints and monitors."""

import re
from collections.abc import Iterator
from typing import Any

from rlrun.converters.imports.import_draft import ImportDraft
from rlrun.converters.imports.spec_draft import plain_name
from rlrun.converters.prime_rl.training_rules import chosen

_TRAIN, _EVAL = "orchestrator.train.source", "orchestrator.eval.source"
_SINGLE_ANSWER = ("null", "None", None)
"""Harnesses in which a task is one prompt and one answer."""


def sources(draft: ImportDraft) -> None:
    """Sets the tasks, from tasksets of the verifiers library, and their reward."""
    numbers = list(_numbers(draft, _TRAIN))
    if not numbers:
        draft.set("data.type", "verifiers", (), "prime-rl's tasks")
        draft.set("data.taskset", "TASKSET", (), "not in the file: fill it in")
        draft.notes.append("orchestrator.train.source: the file has no source of tasks: set data.taskset")
    elif len(numbers) == 1:
        _set_taskset(draft, "data", f"{_TRAIN}.{numbers[0]}")
        draft.drop("there is one source", f"{_TRAIN}.{numbers[0]}.ratio")
    else:
        draft.set("data.type", "mixture", (), "several sources")
        for at, number in enumerate(numbers):
            name = f"{_TRAIN}.{number}"
            _set_taskset(draft, f"data.sources.{at}", name)
            comment = "times that an epoch has each row; prime-rl's is a share of samples"
            draft.put_given(
                f"data.sources.{at}.weight", draft.number(f"{name}.ratio"), f"{name}.ratio", comment=comment
            )
    draft.set("rewards.0.type", "verifiers", (), "the tasks' own rewards")
    draft.drop_unused("a name in prime-rl's metrics", *(f"{_TRAIN}.{number}.name" for number in numbers))


def _numbers(draft: ImportDraft, array: str) -> Iterator[int]:
    """Yields the numbers of an array's elements."""
    found = {
        match[1]
        for name in draft.settings
        if (match := re.match(rf"{re.escape(array)}\.(\d+)(?:\.|$)", name))
    }
    yield from sorted(map(int, found))


def _set_taskset(draft: ImportDraft, table: str, source: str) -> None:
    """Sets a taskset and its own settings."""
    names = (f"{source}.env.taskset.id", f"{source}.env.id")
    taskset = next((draft.value(name) for name in names if draft.value(name)), None)
    draft.set(f"{table}.type", "verifiers", (), "prime-rl's tasks")
    if taskset is None:
        draft.set(f"{table}.taskset", "TASKSET", (), "not in the file: fill it in")
    else:
        draft.put(f"{table}.taskset", str(taskset), *names)
    prefix = f"{source}.env.taskset."
    for name in [name for name in draft.settings if name.startswith(prefix) and name not in names]:
        key, value = name.removeprefix(prefix), draft.value(name)
        if re.fullmatch(r"[A-Za-z_]\w*", key) and isinstance(value, bool | int | float | str):
            draft.put(f"{table}.config.{key}", value, name)
        else:
            draft.drop(f"add it to {table}.config by hand", name)
    agents = [
        name for name in draft.settings if re.fullmatch(rf"{re.escape(source)}\.env\.\w+\.harness\.id", name)
    ]
    if any(draft.value(name) not in _SINGLE_ANSWER for name in agents):
        draft.drop("an agent that uses tools: make it a rollout of type `agent` (docs/rollouts.md)", *agents)


def evaluation(draft: ImportDraft) -> None:
    """Sets the evaluations."""
    numbers = list(_numbers(draft, _EVAL))
    table = "orchestrator.eval"
    if not numbers:
        draft.drop(
            "no effect without a source", *(name for name in draft.settings if name.startswith(f"{table}."))
        )
        return
    for at, number in enumerate(numbers):
        _set_dataset(draft, f"eval.datasets.{at}", f"{_EVAL}.{number}")
    draft.put("eval.interval", draft.count(f"{table}.interval"), f"{table}.interval")
    draft.put("eval.samples_per_prompt", draft.count(f"{table}.group_size"), f"{table}.group_size")
    if draft.is_on(f"{table}.skip_first_step"):
        draft.put("eval.before_training", False, f"{table}.skip_first_step")
    _set_sampling(draft, "eval", f"{table}.sampling")


def _set_sampling(draft: ImportDraft, table: str, sampling: str) -> None:
    """Sets how answers of evaluations are sampled."""
    for key, name, low, high in (("temperature", "temperature", 0, 10), ("top_p", "top_p", 1e-9, 1)):
        if draft.value(f"{sampling}.{name}") is not None:
            value = draft.number(f"{sampling}.{name}", 1.0)
            if low <= value <= high:
                draft.put(f"{table}.{key}", value, f"{sampling}.{name}")
            else:
                draft.drop(f"not between {low:g} and {high}", f"{sampling}.{name}")
    longest = f"{sampling}.max_completion_tokens"
    if draft.value(longest) is not None:
        draft.put(f"{table}.max_response_tokens", draft.count(longest), longest)


def _set_dataset(draft: ImportDraft, table: str, source: str) -> None:
    """Sets a held-out taskset, with what differs from the other ones."""
    written = str(draft.value(f"{source}.name") or draft.value(f"{source}.env.taskset.id") or "held-out")
    plain = plain_name(written, "held-out")
    taken = [dataset.get("name") for dataset in draft.values.get("eval", {}).get("datasets", [])]
    name = plain if plain not in taken else f"{plain}-{source.rpartition('.')[2]}"
    draft.put(f"{table}.name", name, f"{source}.name", f"{source}.env.taskset.id")
    _set_taskset(draft, table, source)
    for setting in (f"{source}.num_examples", "orchestrator.eval.num_examples"):
        if draft.number(setting) >= 1 and not draft.has(f"{table}.size"):
            draft.put(f"{table}.size", draft.count(setting), setting)
    if draft.given(f"{source}.group_size"):
        draft.put(f"{table}.samples_per_prompt", draft.count(f"{source}.group_size"), f"{source}.group_size")
    _set_sampling(draft, table, f"{source}.sampling")


def checkpoints(draft: ImportDraft) -> None:
    """Sets how often checkpoints are written, and how many are kept."""
    tables = ("trainer.ckpt", "orchestrator.ckpt", "ckpt")
    interval, names = chosen(draft, *(f"{table}.interval" for table in tables))
    if interval is not None:
        draft.put("checkpoint.interval", draft.count(names[0], 100), *names)
        kept, kept_names = chosen(draft, *(f"{table}.keep_last" for table in tables))
        value = draft.count(kept_names[0]) if kept is not None else "all"
        draft.put("checkpoint.keep", value, *kept_names)
    else:
        draft.drop("no effect without an interval", *(f"{table}.keep_last" for table in tables))
    draft.drop("a checkpoint is written at the end", *tables)


def trackers(draft: ImportDraft) -> None:
    """Sets Weights & Biases, if the file has a table for it."""
    table = "monitors.wandb"
    names = [name for name in draft.settings if name == table or name.startswith(f"{table}.")]
    if not names or draft.value(table) is False:
        return
    draft.put("trackers.0.type", "wandb", *names)
    for key in ("project", "entity", "group"):
        value: Any = draft.value(f"{table}.{key}")
        if draft.given(f"{table}.{key}") and isinstance(value, str):
            draft.put(f"trackers.0.{key}", value, f"{table}.{key}")
    tags: Any = draft.value(f"{table}.tags")
    if isinstance(tags, list) and tags:
        draft.put("trackers.0.tags", [str(tag) for tag in tags], f"{table}.tags")
    if draft.is_on(f"{table}.offline"):
        draft.put("trackers.0.mode", "offline", f"{table}.offline")
