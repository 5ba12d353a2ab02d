"""Flags of slime about rewards, filters and held-out data."""

import re

from rlrun.converters.slime_draft import Draft
from rlrun.converters.slime_table import flag_table

_NONZERO_STD = "check_reward_nonzero_std"


def data(draft: Draft) -> None:
    """Rows by the kind of file they are in."""
    for flag in draft.given("--prompt-data"):
        _rows(draft, "data", draft.text(flag.name) or "", flag.name)


def _rows(draft: Draft, table: str, path: str, flag: str) -> None:
    if path.partition("@[")[0].endswith(".parquet"):
        draft.set(f"{table}.type", "parquet", (), "by the file's name")
    draft.set(f"{table}.path", path, (flag,))


def rewards(draft: Draft) -> None:
    """One reward by name; what is a function of the user's becomes a plugin."""
    flags = draft.given("--rm-type", "--reward-key", "--rm-url", "--group-rm")
    if draft.algorithm == "sft":
        for flag in flags:
            draft.note(flag, "demonstrations are not scored")
        return
    names = flag_table()["--rm-type"].values
    named = (draft.text("--rm-type") or "").removeprefix("boxed_")
    if named == "remote_rm":
        grouped = draft.given("--group-rm")
        kind = "remote_group" if grouped else "remote"
        draft.set("rewards.*.type", kind, ("--rm-type", *(flag.name for flag in grouped)))
        draft.set("rewards.*.url", draft.text("--rm-url") or "http://HOST", ("--rm-url",))
        return
    for flag in draft.given("--rm-url", "--group-rm"):
        draft.note(flag, "no effect without --rm-type remote_rm")
    if named in names:
        draft.set("rewards.*.type", names[named], ("--rm-type",))
    elif named:
        draft.note(
            draft.flags["--rm-type"], "no such reward: choose one of `rlrun plugins list`, or write one"
        )
    if named not in names and (key := draft.given("--reward-key")):
        draft.note(key[0], "`key` of the reward that you choose")
    elif "--reward-key" in draft.flags:
        draft.set("rewards.*.key", draft.text("--reward-key"), ("--reward-key",))
    if named not in names:
        draft.notes.append("no reward: add a table [[rewards]]")


def filters(draft: Draft) -> None:
    """Dynamic sampling by the spread of rewards is built in."""
    name = "--dynamic-sampling-filter-path"
    for flag in draft.given(name):
        if draft.algorithm == "sft":
            draft.note(flag, "demonstrations are not filtered")
        elif (draft.text(name) or "").endswith(_NONZERO_STD):
            draft.set("filters.*.type", "nonzero_std", (name,))
        else:
            draft.note(flag, "make it a filter plugin: a class that is called with a group (docs/plugins.md)")


def evaluation(draft: Draft) -> None:
    """Datasets in pairs of name and path, and the settings that they share."""
    names = [row.name for row in flag_table().values() if row.rule == "evaluation"]
    words = draft.flags["--eval-prompt-data"].values if "--eval-prompt-data" in draft.flags else []
    if not words or draft.algorithm == "sft":
        for flag in draft.given(*names):
            draft.note(flag, "no effect without --eval-prompt-data, and none on demonstrations")
        return
    if len(words) % 2:
        draft.note(draft.flags["--eval-prompt-data"], "the last word has no partner, and is left out")
    for number in range(len(words) // 2):
        _dataset(draft, f"eval.datasets.{number}", *words[2 * number : 2 * number + 2])
    if "--eval-interval" not in draft.flags:
        draft.notes.append(
            "no --eval-interval: slime does not evaluate; rlrun does before training and at its end"
        )
    kinds = {"interval": int, "max_response_tokens": int, "temperature": float, "top_p": float}
    for row in (flag_table()[name] for name in names):
        key = (row.key or "").removeprefix("eval.")
        if key in kinds and row.name in draft.flags:
            draft.set(row.key or "", kinds[key](draft.number(row.name, 1)), (row.name,))
    samples = draft.whole("--n-samples-per-eval-prompt", 1)
    draft.set("eval.samples_per_prompt", samples, ("--n-samples-per-eval-prompt",))


def _dataset(draft: Draft, table: str, name: str, path: str) -> None:
    draft.set(
        f"{table}.name",
        re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("-._") or "eval",
        ("--eval-prompt-data",),
    )
    _rows(draft, table, path, "--eval-prompt-data")
    for key, own, shared, default in (
        ("prompt_key", "--eval-input-key", "--input-key", "input"),
        ("label_key", "--eval-label-key", "--label-key", None),
        ("tools_key", "--eval-tool-key", "--tool-key", None),
    ):
        value = draft.text(own) or draft.text(shared) or default
        if value is not None:
            draft.set(f"{table}.{key}", value, (own if own in draft.flags else shared,))
    chat = "--apply-chat-template"
    draft.set(f"{table}.apply_chat_template", chat in draft.flags, (chat,))
