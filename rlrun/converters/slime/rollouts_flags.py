"""Translates slime's flags about sampling, and about which samples are kept."""

import math

from rlrun.converters.slime.draft import Draft
from rlrun.converters.slime.servers_flags import DEFAULT_CONCURRENCY
from rlrun.models.json_files import parse_json
from rlrun.specs.sections.rollout import USUAL_PROMPT_TOKENS

_FULLY_ASYNC = "fully_async"
_SFT = "sft_rollout"
_DEFAULT_FUNCTIONS = ("sglang_rollout", "sleep_rollout")
_UPDATES = "--update-weights-interval"
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
        _fully_async_staleness(draft)
    elif draft.is_async:
        draft.set("rollout.mode", "async", (), "train_async.py generates while it trains")
        draft.set(
            "rollout.weight_update", "between", (), "with train_async.py one version generates a sample"
        )
        interval = draft.count(_UPDATES, 1) if draft.given(_UPDATES) else 1
        draft.set("rollout.max_staleness", interval, (), "train_async.py generates one step ahead")
    _update_interval(draft)
    if flag and _FULLY_ASYNC not in path:
        known = any(name in path for name in _DEFAULT_FUNCTIONS)
        draft.note(
            flag,
            DEFAULT_ROLLOUT
            if known
            else "make it a rollout plugin: a class with a `run` method (docs/rollouts.md)",
        )


def _update_interval(draft: Draft) -> None:
    """Sets after how many steps engines get weights: train.py updates them after every step."""
    for flag in draft.given(_UPDATES):
        if draft.values.get("rollout", {}).get("mode") == "async":
            draft.set("rollout.weight_update_interval", draft.count(flag.name, 1), (flag.name,))
            draft.note(flag, "evaluations and checkpoints are updates, too: in slime they are not")
        else:
            draft.note(flag, "no effect: only train_async.py reads it")


def _fully_async_staleness(draft: Draft) -> None:
    """Sets the staleness at which rlrun generates as far ahead as slime, and so discards nothing.

    slime limits only the number of groups: as many run as servers take requests, and as many may wait.
    """
    servers = len(draft.values_of("--rollout-external-engine-addrs"))
    servers = servers or draft.count("--rollout-num-gpus", 1) // draft.count(
        "--rollout-num-gpus-per-engine", 1
    )
    groups = 2 * max(servers, 1) * draft.count("--sglang-server-concurrency", DEFAULT_CONCURRENCY)
    ahead = math.ceil(groups / draft.count("--rollout-batch-size", 1))
    steps = draft.values.get("trainer", {}).get("steps", ahead)
    comment = f"slime has up to {groups} groups in flight or waiting, and discards none; lower it"
    interval = draft.count(_UPDATES, 1) if draft.given(_UPDATES) else 1
    longest = max(min(ahead, steps) + interval - 1, interval)
    draft.set("rollout.max_staleness", longest, (), f"{comment} for fresher samples")


def partial(draft: Draft) -> None:
    """Sets whether unfinished samples continue in the next step; asynchronous jobs never stop samples."""
    started = draft.given("--partial-rollout")
    for flag in started:
        if draft.values.get("rollout", {}).get("mode") == "async":
            draft.note(flag, "no effect: an asynchronous job never stops a sample")
            continue
        draft.set("rollout.partial", True, (flag.name,))
        steps = draft.values.get("trainer", {}).get("steps")
        if steps is not None:
            draft.set("rollout.max_staleness", steps, (), "slime continues samples of any age")
        elif draft.algorithm != "sft":
            draft.notes.append(
                "rollout.max_staleness: slime continues samples of any age, and rlrun discards those that "
                "span more than one step: set it to the number of steps"
            )
    for flag in draft.given("--mask-offpolicy-in-partial-rollout"):
        if draft.has("rollout.partial"):
            draft.set("rollout.mask_off_policy", True, (flag.name,))
        else:
            draft.note(flag, "no effect without --partial-rollout")


def lengths(draft: Draft) -> None:
    """Sets the longest prompt, and the lengths of responses of several turns.

    By default slime drops no prompt; rlrun drops those that are too long.
    """
    context, prompt = _context(draft), draft.given("--rollout-max-prompt-len")
    if "--custom-generate-function-path" in draft.flags and draft.algorithm != "sft":
        _turns(draft)
    elif prompt:
        draft.set("rollout.max_prompt_tokens", draft.whole(prompt[0].name, 1), (prompt[0].name,))
        for flag in draft.given("--rollout-max-context-len"):
            draft.note(flag, "rollout.max_prompt_tokens and rollout.max_response_tokens limit the context")
    elif context and context > _response(draft):
        flag = draft.flags["--rollout-max-context-len"]
        room = context - _response(draft)
        draft.set("rollout.max_prompt_tokens", room, (flag.name,), f"{flag} minus the response")
    else:
        for flag in draft.given("--rollout-max-context-len"):
            draft.note(
                flag, "--rollout-max-response-len leaves no room for a prompt: set rollout.max_prompt_tokens"
            )
    if not draft.has("rollout.max_prompt_tokens"):
        draft.notes.append(
            "rollout.max_prompt_tokens: slime drops no prompt; rlrun drops prompts of more than 4096 tokens, "
            "or of more tokens than the model has room for, and reports their number"
        )
    if draft.algorithm == "sft" and "--rollout-max-response-len" not in draft.flags:
        draft.set("rollout.max_response_tokens", _DEMONSTRATION_TOKENS, (), "slime drops no demonstration")
        draft.notes.append(
            "rollout.max_response_tokens: slime trains on responses of any length; rlrun counts longer ones "
            "as broken rows (data.max_bad_share): raise it where rows are longer"
        )


def _response(draft: Draft) -> int:
    return draft.whole("--rollout-max-response-len", 1024)


def _context(draft: Draft) -> int | None:
    """Returns the most tokens of a sample, if the script limits them."""
    return draft.whole("--rollout-max-context-len", 1) if draft.given("--rollout-max-context-len") else None


def _turns(draft: Draft) -> None:
    """Sets the lengths of a rollout of the user's, which may have several turns.

    slime limits each request by --rollout-max-response-len. The function itself limits all turns together, by
    --rollout-max-context-len or, as slime's example `retool`, by the tokens that the trainer's GPUs take.
    """
    turn, context = _response(draft), _context(draft)
    response, source = turn, "--rollout-max-response-len"
    for flag in draft.given("--rollout-max-prompt-len"):
        draft.set("rollout.max_prompt_tokens", draft.count(flag.name, 1), (flag.name,))
    if context and context > turn:
        longest = draft.count("--rollout-max-prompt-len", min(USUAL_PROMPT_TOKENS, (context - turn + 1) // 2))
        response, source = max(turn, context - longest), "--rollout-max-context-len"
        if not draft.has("rollout.max_prompt_tokens"):
            comment = "slime limits prompt and response together: divide its value as your prompts need it"
            draft.set("rollout.max_prompt_tokens", longest, (source,), comment)
    elif "--max-tokens-per-gpu" in draft.flags and "--use-dynamic-batch-size" in draft.flags:
        source = "--max-tokens-per-gpu"
        ranks = draft.count("--context-parallel-size", 1)
        response = max(turn, draft.count(source, 1) * ranks)
    if response > turn:
        draft.set("rollout.max_response_tokens", response, (source,), "all turns together")
        draft.set("rollout.max_turn_tokens", turn, ("--rollout-max-response-len",), "of each request")
    else:
        draft.notes.append(
            "rollout.max_response_tokens: limits all turns of --custom-generate-function-path together; "
            f"raise it, and set rollout.max_turn_tokens = {turn}: slime limits each request"
        )


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
            arguments = parse_json(draft.text(given.name) or "")
        except ValueError:
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
