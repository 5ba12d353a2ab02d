"""Translates slime's flags about sampling, and about which samples are kept."""

import json

from rlrun.converters.slime.draft import Draft

_FULLY_ASYNC = "fully_async"
_SFT = "sft_rollout"
_DEFAULT_FUNCTIONS = ("sglang_rollout", "sleep_rollout")
_DEMONSTRATION_TOKENS = 16384
_MAX_ATTEMPTS = 1000
DEFAULT_ROLLOUT = "this is what rlrun does by default"
SFT_ROLLOUT = 'this is what `algorithm.type = "sft"` does'


def rollout_function(draft: Draft) -> None:
    """Sets asynchrony, which slime selects by the training program or the rollout function."""
    flag = next(iter(draft.given("--rollout-function-path")), None)
    path = (draft.text("--rollout-function-path") or "") if flag else ""
    if draft.algorithm == "sft":
        if flag and _SFT not in path:
            draft.note(flag, "demonstrations are not sampled")
        elif flag:
            draft.note(flag, SFT_ROLLOUT)
        return
    if _FULLY_ASYNC in path:
        draft.set("rollout.mode", "async", ("--rollout-function-path",), "engines never wait")
        draft.notes.append(
            "rollout.max_staleness: slime trains on samples of any age; rlrun discards older ones"
        )
    elif draft.is_async:
        draft.set("rollout.mode", "async", (), "train_async.py generates while it trains")
        draft.set(
            "rollout.weight_update", "between", (), "with train_async.py one version generates a sample"
        )
    if flag and _FULLY_ASYNC not in path:
        known = any(name in path for name in _DEFAULT_FUNCTIONS)
        draft.note(
            flag,
            DEFAULT_ROLLOUT
            if known
            else "make it a rollout plugin: a class with a `run` method (docs/rollouts.md)",
        )


def partial(draft: Draft) -> None:
    """Sets whether unfinished samples continue in the next step; asynchronous jobs never stop samples."""
    started = draft.given("--partial-rollout")
    for flag in started:
        if draft.values.get("rollout", {}).get("mode") == "async":
            draft.note(flag, "no effect: an asynchronous job never stops a sample")
        else:
            draft.set("rollout.partial", True, (flag.name,))
    for flag in draft.given("--mask-offpolicy-in-partial-rollout"):
        if draft.has("rollout.partial"):
            draft.set("rollout.mask_off_policy", True, (flag.name,))
        else:
            draft.note(flag, "no effect without --partial-rollout")


def lengths(draft: Draft) -> None:
    """Sets the longest prompt. By default slime drops no prompt; rlrun drops those that are too long."""
    response = draft.whole("--rollout-max-response-len", 1024)
    prompt, context = draft.given("--rollout-max-prompt-len"), draft.given("--rollout-max-context-len")
    if prompt:
        draft.set("rollout.max_prompt_tokens", draft.whole(prompt[0].name, 1), (prompt[0].name,))
        for flag in context:
            draft.note(flag, "rollout.max_prompt_tokens and rollout.max_response_tokens limit the context")
    elif context and draft.whole(context[0].name, 1) > response:
        room = draft.whole(context[0].name, 1) - response
        draft.set("rollout.max_prompt_tokens", room, (context[0].name,), f"{context[0]} minus the response")
    else:
        for flag in context:
            draft.note(
                flag, "--rollout-max-response-len leaves no room for a prompt: set rollout.max_prompt_tokens"
            )
        draft.notes.append(
            "rollout.max_prompt_tokens: slime drops no prompt; rlrun drops prompts of more than 4096 tokens, "
            "or of more tokens than the model has room for, and reports their number"
        )
    if draft.algorithm == "sft" and "--rollout-max-response-len" not in draft.flags:
        draft.set("rollout.max_response_tokens", _DEMONSTRATION_TOKENS, (), "slime drops no demonstration")


def time_limits(draft: Draft) -> None:
    """Raises the number of attempts: slime samples until enough groups pass the filter."""
    if "--dynamic-sampling-filter-path" in draft.flags and "filters" in draft.values:
        draft.set(
            "rollout.max_attempts", _MAX_ATTEMPTS, (), "slime samples until enough groups pass the filter"
        )


def template(draft: Draft) -> None:
    """Sets whether and how the chat template renders messages; it always renders demonstrations."""
    flag = "--apply-chat-template"
    if draft.algorithm == "sft":
        draft.set("data.apply_chat_template", True, (flag,), "as slime does for demonstrations")
    else:
        comment = "" if flag in draft.flags else f"slime's default without {flag}"
        draft.set("data.apply_chat_template", flag in draft.flags, (flag,), comment)
    for given in draft.given("--apply-chat-template-kwargs"):
        try:
            arguments = json.loads(draft.text(given.name) or "")
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict) or not all(map(_is_setting, arguments.items())):
            draft.note(given, "not a JSON object of plain values: set model.chat_template_args by hand")
            continue
        for name, value in arguments.items():
            draft.set(f"model.chat_template_args.{name}", value, (given.name,))
        if not arguments:
            draft.note(given, "no effect: the JSON object is empty")


def _is_setting(item: tuple[str, object]) -> bool:
    """Returns whether an argument of a template has a plain name and a plain value."""
    return item[0].isidentifier() and isinstance(item[1], (bool, int, float, str))


def debug(draft: Draft) -> None:
    """Sets the part of the job to run, and whether samples are saved."""
    for flag in draft.given("--save-debug-rollout-data", "--save-debug-train-data", "--dump-details"):
        draft.set("debug.save_rollouts", True, (flag.name,))
    for flag in draft.given("--debug-rollout-only"):
        draft.set("debug.mode", "rollout", (flag.name,))
    for flag in draft.given("--debug-train-only"):
        if draft.algorithm == "sft":
            draft.note(flag, SFT_ROLLOUT)
        else:
            draft.note(
                flag, '`debug.mode = "train"` needs `debug.rollouts`, the folder of a run that saved samples'
            )


def determinism(draft: Draft) -> None:
    """Sets determinism, if the script asks for it in both the trainer and the servers."""
    for flag in draft.given("--deterministic-mode"):
        if "--sglang-enable-deterministic-inference" in draft.flags:
            draft.set("deterministic", True, (flag.name,))
        else:
            draft.note(
                flag,
                "rlrun makes the whole job deterministic or nothing: set `deterministic = true`, with "
                "`enable_deterministic_inference = true` under [engine.sglang]",
            )
