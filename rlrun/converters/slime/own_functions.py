"""Makes each function of the user's that a flag of slime names a plugin that remains to be written."""

from collections.abc import Mapping
from typing import Any

from rlrun.converters.slime.draft import Draft, Flag

_ICEPOP = "icepop_function"
_MIS = "mis.compute_mis_weights"
_SEARCH, _RETOOL = "generate_with_search.generate", "generate_with_retool.generate"
_SEARCH_TAGS = ["</search>", "</answer>"]
_RETOOL_PROMPT = (
    "You are a helpful assistant that can use Python tools to solve mathematical problems. When you need to "
    "perform calculations, use the python tool to execute code and get results."
)
_ROLLOUTS: Mapping[str, Mapping[str, Any]] = {
    _SEARCH: {
        "syntax": "tags",
        "max_turns": 2,
        "tools.0.type": "retriever",
        "tools.0.url": "http://127.0.0.1:8000/retrieve",
        "tools.0.results": 3,
    },
    _RETOOL: {
        "max_turns": 16,
        "tool_timeout": 130.0,
        "tools.0.type": "python",
        "tools.0.timeout": 120.0,
        "tools.0.concurrency": 32,
    },
}
"""The rollouts of slime's examples search-r1 and retool as settings of `multi_turn_tools`."""
_ALGORITHM: Mapping[str, str] = {
    "--custom-advantage-function-path": "advantages",
    "--custom-reward-post-process-path": "advantages",
    "--custom-loss-function-path": "loss",
    "--custom-pg-loss-reducer-function-path": "loss",
    "--custom-tis-function-path": "loss",
}
"""Functions that replace a part of an algorithm, and the method that does the same."""


def own_functions(draft: Draft) -> None:
    """Names a plugin for each function, except for rewards and filters, whose rules know more functions."""
    if draft.algorithm == "sft":
        for flag in draft.given("--custom-generate-function-path", "--rollout-sample-filter-path"):
            draft.note(flag, "demonstrations are not sampled")
    else:
        for flag in draft.given("--custom-generate-function-path"):
            _rollout(draft, flag)
        for flag in draft.given("--rollout-sample-filter-path"):
            draft.leave("hooks", "hooks.*.type", flag)
    for flag in draft.given("--data-source-path"):
        draft.leave("data", "data.type", flag, base=draft.values["data"].get("type", "jsonl"))
    for flag in draft.given("--buffer-filter-path"):
        if draft.has("rollout.partial"):
            draft.leave("buffers", "rollout.buffer.type", flag)
        else:
            draft.note(flag, "no effect: only --partial-rollout fills the buffer")
    _algorithm(draft)


def _rollout(draft: Draft, flag: Flag) -> None:
    """Sets the rollout that does what a function of slime's examples does; others remain to be written."""
    example = next((name for name in _ROLLOUTS if f".{draft.text(flag.name)}".endswith(f".{name}")), None)
    if example is None:
        draft.leave("rollouts", "rollout.function.type", flag)
        return
    draft.set("rollout.function.type", "multi_turn_tools", (flag.name,), "as slime's example has it")
    for key, value in _ROLLOUTS[example].items():
        draft.set(f"rollout.function.{key}", value, (flag.name,), "as slime's example has it")
    if example == _SEARCH:
        stop = [*draft.values["rollout"].get("stop", []), *_SEARCH_TAGS]
        draft.set("rollout.stop", stop, (flag.name,), "as slime's example has it")
        draft.note(flag, "an answer without a tag ends the conversation; slime's example asks again")
    else:
        for section in ("data", *(f"eval.datasets.{number}" for number in range(_num_datasets(draft)))):
            draft.set(
                f"{section}.system_prompt", _RETOOL_PROMPT, (flag.name,), "slime's, with the tool's name"
            )
            draft.set(f"{section}.apply_chat_template", True, (flag.name,), "which shows the tool")
        draft.note(
            flag,
            "the tool is called python, in the model's own syntax; slime's example also runs code blocks, "
            "and asks again after an answer without a call",
        )


def _num_datasets(draft: Draft) -> int:
    return len(draft.values.get("eval", {}).get("datasets", []))


def _algorithm(draft: Draft) -> None:
    """Names an algorithm that has the settings of slime's, and whose own methods remain to be written."""
    flags = [flag for flag in draft.given(*_ALGORITHM) if not _is_translated(draft, flag.name)]
    if draft.algorithm == "sft" or draft.is_pure_distillation:
        for flag in flags:
            draft.note(flag, f"{draft.algorithm} has no such parameter")
    elif flags:
        methods = tuple(dict.fromkeys(_ALGORITHM[flag.name] for flag in flags))
        draft.leave("algorithms", "algorithm.type", *flags, base=draft.algorithm, methods=methods)


def _is_translated(draft: Draft, name: str) -> bool:
    """Returns whether another rule translates the function, or finds that it has no effect."""
    function = draft.text(name) or ""
    if name == "--custom-tis-function-path":
        return "--use-tis" not in draft.flags or _MIS in function or function.endswith(_ICEPOP)
    return draft.is_pure_distillation and name == "--custom-reward-post-process-path"
