"""Translates slime's flags about data and rewards."""

from collections.abc import Mapping
from typing import Any

from rlrun.converters.imports.secrets import without_credentials
from rlrun.converters.slime.draft import Draft
from rlrun.converters.slime.flag_table import flag_table
from rlrun.models.json_files import parse_json

_NONZERO_STD = "check_reward_nonzero_std"
_MEDIA = "--multimodal-keys"
_REMOTE_SECONDS = 120.0
_BOXED = "boxed_"
_WITH_BOXED_KEY = ("f1",)
"""Rewards that read the answer from `\\boxed{}` only if their key `boxed` is set."""
_OF_EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "generate_with_search.reward_func": {
        "type": "exact_match",
        "words": True,
        "answer_pattern": "<answer>(.*?)</answer>",
    },
    "generate_with_retool.reward_func": {"type": "dapo", "boxed": True, "tool_bonus": 0.05, "key": "score"},
}
"""The rewards of slime's examples search-r1 and retool, by the function that --custom-rm-path names."""
_LABELS = {"generate_with_search.reward_func": "ground_truth.target"}
"""Where such a function looks for the answer in the label."""


def data(draft: Draft) -> None:
    """Sets the training data."""
    for flag in draft.given("--prompt-data"):
        set_rows(draft, "data", draft.text(flag.name) or "", flag.name)
    if draft.given("--rm-type") and not draft.given("--label-key") and draft.has("rewards.*.type"):
        draft.notes.append(
            "data.label_key: without --label-key, slime's rewards see no label; rlrun's read the column "
            "`label` of rows that have it"
        )


def set_rows(draft: Draft, table: str, path: str, flag: str) -> None:
    """Sets the file of a data source, and its type if the file is not JSON lines."""
    if path.partition("@[")[0].endswith(".parquet"):
        draft.set(f"{table}.type", "parquet", (), "by the file's name")
    draft.set(f"{table}.path", path, (flag,))
    if (column := _media_columns(draft).get("image")) is not None:
        draft.set(f"{table}.images_key", column, (_MEDIA,))


def images(draft: Draft) -> None:
    """Loads the vision tower for the columns of --multimodal-keys; columns of other media become notes."""
    columns = _media_columns(draft)
    for flag in draft.given(_MEDIA):
        if "image" in columns:
            draft.set("trainer.vision_tower", "frozen", (_MEDIA,), '"trained" also updates the tower')
        others = ", ".join(sorted(set(columns) - {"image"}))
        if others or not columns:
            draft.note(flag, f"{others or 'a value without columns'}: only images are supported")


def _media_columns(draft: Draft) -> dict[str, str]:
    """Returns the columns of --multimodal-keys by medium: `{"image": "images"}`."""
    try:
        columns = parse_json(draft.text(_MEDIA) or "{}")
    except ValueError:
        return {}
    return {str(kind): str(column) for kind, column in columns.items()} if isinstance(columns, dict) else {}


def rewards(draft: Draft) -> None:
    """Sets the reward that the script names; the user has to make a custom function a plugin."""
    if draft.algorithm == "sft":
        for flag in draft.given("--rm-type", "--reward-key", "--rm-url", "--group-rm", "--custom-rm-path"):
            draft.note(flag, "demonstrations are not scored")
        return
    custom = draft.given("--custom-rm-path")
    if draft.is_pure_distillation:
        for flag in draft.given("--rm-type", "--reward-key", "--group-rm"):
            draft.note(flag, "no effect: a job with distillation only has no reward")
    elif example := _example(draft):
        _example_reward(draft, example)
    elif custom:
        draft.leave("rewards", "rewards.*.type", *custom)
        for flag in draft.given("--rm-type", "--rm-url"):
            draft.note(flag, "no effect beside --custom-rm-path")
        for flag in draft.given("--group-rm"):
            draft.note(flag, "write `score_group(samples)` in place of `score(sample)` (docs/plugins.md)")
        for flag in draft.given("--reward-key"):
            draft.set("rewards.*.key", draft.text(flag.name) or "", (flag.name,))
    else:
        _named_reward(draft, draft.text("--rm-type") or "")


def _example(draft: Draft) -> str | None:
    """Returns the function of slime's examples that --custom-rm-path names, if there is a reward like it."""
    path = draft.text("--custom-rm-path") or ""
    return next((name for name in _OF_EXAMPLES if f".{path}".endswith(f".{name}")), None)


def _example_reward(draft: Draft, name: str) -> None:
    """Sets the reward that does what a function of slime's examples does."""
    reward = _OF_EXAMPLES[name]
    for key, value in reward.items():
        draft.set(f"rewards.*.{key}", value, ("--custom-rm-path",), "as slime's example has it")
    if (column := draft.text("--label-key")) and (inner := _LABELS.get(name)):
        draft.set("data.label_key", f"{column}.{inner}", ("--label-key",), "which the reward reads")
    for flag in draft.given("--rm-type", "--rm-url", "--group-rm"):
        draft.note(flag, "no effect beside --custom-rm-path")
    for flag in draft.given("--reward-key"):
        if "key" in reward:
            draft.set("rewards.*.key", draft.text(flag.name) or "", (flag.name,))
        else:
            draft.note(flag, "no effect: the reward is a number")


def _named_reward(draft: Draft, name: str) -> None:
    """Sets the reward of --rm-type, or the one that a rollout notes if there is none."""
    plain, known = name.removeprefix(_BOXED), flag_table()["--rm-type"].values
    if plain == "remote_rm":
        _remote_reward(draft)
    else:
        served = draft.text("--opd-type") == "sglang"
        for flag in draft.given("--group-rm", *([] if served else ["--rm-url"])):
            draft.note(flag, "no effect without --rm-type remote_rm")
    if not name and (judges := draft.given("--custom-generate-function-path")):
        comment = "the number that your rollout notes; in slime it sets the sample's reward"
        draft.set("rewards.*.type", "noted", (judges[0].name,), comment)
        for flag in draft.given("--reward-key"):
            draft.set("rewards.*.note", draft.text(flag.name) or "reward", (flag.name,))
        return
    if plain not in known:
        for flag in draft.given("--rm-type"):
            draft.note(flag, "no such reward: choose a reward from `rlrun plugins list`, or write a plugin")
        for flag in draft.given("--reward-key"):
            draft.note(flag, "set it as `key` of the reward that you choose")
        draft.notes.append("no reward: add a table [[rewards]]")
        return
    for key, value in ({} if plain == "remote_rm" else named_reward(draft, name) or {}).items():
        draft.set(f"rewards.*.{key}", value, ("--rm-type",))
    if "--reward-key" in draft.flags:
        draft.set("rewards.*.key", draft.text("--reward-key") or "", ("--reward-key",))


def named_reward(draft: Draft, name: str) -> dict[str, Any] | None:
    """Returns the table of a reward of slime by its name, such as `boxed_f1`; None if there is no such."""
    plain, known = name.removeprefix(_BOXED), flag_table()["--rm-type"].values
    if plain not in known:
        return None
    table: dict[str, Any] = {"type": known[plain]}
    if plain == "remote_rm":
        table["url"] = without_credentials(draft.text("--rm-url") or "http://HOST")
    if name != plain and plain in _WITH_BOXED_KEY:
        table["boxed"] = True
    return table


def _remote_reward(draft: Draft) -> None:
    grouped = draft.given("--group-rm")
    kind = "remote_group" if grouped else "remote"
    draft.set("rewards.*.type", kind, ("--rm-type", *(flag.name for flag in grouped)))
    url = draft.text("--rm-url") or "http://HOST"
    draft.set("rewards.*.url", without_credentials(url), ("--rm-url",))
    draft.set("scoring.timeout", _REMOTE_SECONDS, (), "slime's timeout for a remote reward")


def filters(draft: Draft) -> None:
    """Sets the filter of dynamic sampling. The filter by the spread of rewards is built in."""
    name = "--dynamic-sampling-filter-path"
    for flag in draft.given(name):
        function = (draft.text(name) or "").rpartition(".")[2]
        if function.startswith(_NONZERO_STD):
            draft.set("filters.*.type", "nonzero_std", (name,))
            if function != _NONZERO_STD:
                draft.note(
                    flag, "rlrun replaces all groups that the filter drops and keeps none as a fallback"
                )
        else:
            draft.leave("filters", "filters.*.type", flag)
