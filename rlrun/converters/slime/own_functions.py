"""Makes each function of the user's that a flag of slime names a plugin that remains to be written."""

from collections.abc import Mapping

from rlrun.converters.slime.draft import Draft

_ICEPOP = "icepop_function"
_MIS = "mis.compute_mis_weights"
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
            draft.leave("rollouts", "rollout.function.type", flag)
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
