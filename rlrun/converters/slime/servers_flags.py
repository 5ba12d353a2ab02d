"""Translates slime's flags about servers, their weights, their speculative decoding, and the GPUs they share
with the trainer.
"""

import json
import re
from typing import Any

from rlrun.converters.imports.secrets import bare_address
from rlrun.converters.slime.draft import Draft, Flag, file_settings

Settings = dict[str, Any]
DEFAULT_CONCURRENCY = 512
"""slime's default limit per engine."""
_QUANTISED = re.compile(r"[-_](?P<kind>fp8|int4|int8|w4a16|awq|gptq)(?=[-_/]|$)", re.IGNORECASE)
_QUANTISED_FAMILIES = re.compile(r"DeepSeek-(?:R1|V3)(?!-Distill)|Kimi-K2|MiniMax-M[12]", re.IGNORECASE)
"""Models that are published only in FP8 or INT4."""
_INT4_FAMILIES = re.compile(r"Kimi-K2(?:-Thinking|\.\d)", re.IGNORECASE)
"""Models that are published in INT4, with a scale per 32 numbers."""
_FP8, _INT4 = ("fp8", ""), ("int4", "w4a16")
_KIMI_GROUP, _SLIME_GROUP = 32, 128
"""How many numbers share a scale in Kimi's checkpoints, and in slime's training without other settings."""
_ROLES = ("regular", "prefill", "decode")
"""The kinds of slime's servers that are roles of groups."""
_ROUTER_IP, _ROUTER_PORT = "--sglang-router-ip", "--sglang-router-port"
_TRANSFER = "--sglang-disaggregation-"
_PREFIX = "--sglang-speculative-"
_ALGORITHM, _FOLDER = f"{_PREFIX}algorithm", f"{_PREFIX}draft-model-path"
_TOKENS, _STEPS, _BRANCHES = f"{_PREFIX}num-draft-tokens", f"{_PREFIX}num-steps", f"{_PREFIX}eagle-topk"
_ALGORITHMS = ("ngram", "eagle3", "dflash", "standalone")


def model(draft: Draft) -> None:
    """Sets the policy's folder, and the library of its layers. A quantised folder is for engines; the trainer
    needs one in bfloat16.
    """
    if draft.only_transformers is not None:
        draft.set("model.implementation", "transformers", ("--spec",), "computes the layers of this family")
    for flag in draft.given("--hf-checkpoint"):
        path = draft.text(flag.name) or ""
        folder = path.rstrip("/")
        name = folder.rpartition("/")[2]
        marked = _QUANTISED.search(name)
        if not (_is_quantised(draft) or marked or _QUANTISED_FAMILIES.search(name)):
            draft.set("model.path", path, (flag.name,))
            continue
        wide = folder[: len(folder) - len(name)] + (_QUANTISED.sub("", name) if marked else f"{name}-bf16")
        draft.set("model.path", wide, (flag.name,), "--hf-checkpoint is quantised and cannot be trained")
        kind = marked["kind"].lower() if marked else ""
        draft.note(
            flag,
            "quantised: model.path has to be the bfloat16 model; make it with "
            "`rlrun convert hf-to-hf SRC DST --quantize none`",
        )
        if draft.algorithm == "sft":
            continue
        if kind in _INT4 or (not kind and _INT4_FAMILIES.search(name)):
            _rounds_to_int4(draft, flag, folder)
        elif kind in _FP8:
            draft.set("engine.model", folder, (flag.name,), "servers start from it; updates are in FP8")
        else:
            draft.note(flag, f"engines serve bfloat16: rlrun cannot update weights in {kind.upper()}")
    if not draft.has("trainer.int4_group"):
        for flag in draft.given("--int4-params-rollout"):
            draft.note(flag, "no effect: --hf-checkpoint does not name a model in INT4")


def _rounds_to_int4(draft: Draft, flag: Flag, folder: str) -> None:
    """Sets servers in INT4, and a trainer that rounds the same matrices in the same groups."""
    default = _KIMI_GROUP if _INT4_FAMILIES.search(folder.rpartition("/")[2]) else _SLIME_GROUP
    stored = re.findall(r'"group_size": (\d+)', json.dumps(draft.model_config.get("quantization_config")))
    names = (flag.name, *(given.name for given in draft.given("--int4-params-rollout")))
    draft.set("engine.model", folder, (flag.name,), "servers start from it; updates are in INT4")
    draft.set("trainer.precision", "int4_qat", names, "trains with the rounded weights that servers have")
    group = int(stored[0]) if stored else draft.int4_group or default
    draft.set("trainer.int4_group", group, (flag.name,))


def _is_quantised(draft: Draft) -> bool:
    """Returns whether the model's config.json can be read here and names a quantisation."""
    return isinstance(draft.model_config.get("quantization_config"), dict)


def engine(draft: Draft) -> None:
    """Sets the engine's type, the GPUs per server, and how many samples a server runs concurrently."""
    if draft.algorithm != "sft":
        draft.set("engine.type", "sglang", (), "slime's engine")
    if addresses := draft.given("--rollout-external-engine-addrs"):
        urls = [address if "://" in address else f"http://{address}" for address in addresses[0].values]
        draft.set("engine.type", "external", (addresses[0].name,))
        bare = [bare_address(url) for url in urls]
        draft.set("engine.urls", bare, (addresses[0].name,))
        if bare != urls:
            draft.note(
                addresses[0], 'an address must not contain a secret: set `engine.api_key = "${env:NAME}"`'
            )
    _running_router(draft)
    stages = draft.given("--sglang-pp-size", "--sglang-pipeline-parallel-size")
    degree = max([1, *(draft.count(flag.name, 1) for flag in stages)])
    for flag in stages:
        if degree == 1:
            draft.note(flag, "no effect: one stage is not a pipeline")
    if degree > 1:
        draft.set("engine.sglang.pp_size", degree, tuple(flag.name for flag in stages))
        draft.set(
            "engine.weight_sync",
            "disk",
            tuple(flag.name for flag in stages),
            "stages read weights from files",
        )
    for flag in draft.given("--rollout-num-gpus-per-engine"):
        comment = f"{flag.name} / {degree} pipeline stages" if degree > 1 else ""
        draft.set("engine.tensor", max(1, draft.whole(flag.name, 1) // degree), (flag.name,), comment)
    _max_running(draft)


def _running_router(draft: Draft) -> None:
    """Sets the router that runs already; slime starts one where no address is given."""
    flags = draft.given(_ROUTER_IP, _ROUTER_PORT)
    names = tuple(flag.name for flag in flags)
    if draft.given("--rollout-external-engine-addrs"):
        for flag in flags:
            draft.note(flag, "no effect: requests go to external engines directly")
    elif len(flags) == 2:
        draft.set("engine.router", "sglang-router", names)
        host = draft.text(_ROUTER_IP) or ""
        host = f"[{host}]" if ":" in host else host
        draft.set("engine.router_url", f"http://{host}:{draft.text(_ROUTER_PORT)}", names)
    else:
        for flag in flags:
            draft.note(flag, f"the job starts the router, unless {_ROUTER_IP} and {_ROUTER_PORT} are given")


def _max_running(draft: Draft) -> None:
    """Sets how many samples an engine runs concurrently: the lower of slime's limit and the server's."""
    flags = draft.given("--sglang-server-concurrency", "--sglang-max-running-requests")
    limits = [draft.whole("--sglang-server-concurrency", DEFAULT_CONCURRENCY)]
    limits += [
        draft.whole(flag.name, DEFAULT_CONCURRENCY) for flag in flags if flag.name.endswith("requests")
    ]
    if draft.given("--rollout-external-engine-addrs"):
        for flag in flags:
            draft.note(flag, "no effect: external engines have their own settings")
        return
    comment = "" if flags else "slime's default without --sglang-server-concurrency"
    if draft.algorithm != "sft" or flags:
        draft.set("engine.max_running", min(limits), tuple(flag.name for flag in flags), comment)


def weight_sync(draft: Draft) -> None:
    """Sets how new weights are sent to servers."""
    for flag in draft.given("--update-weight-transport"):
        if draft.text(flag.name) == "disk":
            draft.set("engine.weight_sync", "disk", (flag.name,))
        else:
            draft.note(flag, "rlrun chooses by the layout: engine.weight_sync")
    for flag in draft.given("--update-weight-mode"):
        if draft.text(flag.name) == "delta":
            draft.set("engine.weight_sync", "disk", (flag.name,))
            draft.set("engine.weight_delta", "elements", (flag.name,))
        else:
            draft.note(flag, "this is the default")
    shared = "--colocate" in draft.flags and draft.whole("--actor-num-nodes", 1) == 1
    for flag in draft.given("--update-weight-buffer-size"):
        if shared and not draft.has("engine.weight_sync"):
            draft.note(flag, "no effect: the whole model is sent at once, through shared memory")
        else:
            draft.set("engine.weight_bucket", max(1, draft.whole(flag.name, 1) >> 20), (flag.name,))


def sleeping(draft: Draft) -> None:
    """Sets whether trainer and engines free their GPU memory for each other."""
    off = draft.given("--no-offload-train", "--no-offload-rollout")
    if len(off) == 2 and "--colocate" in draft.flags:
        draft.set("engine.sleep", False, tuple(flag.name for flag in off))
    else:
        for flag in off:
            draft.note(flag, "engine.sleep = false keeps both trainer and engines on the GPUs they share")
    for flag in draft.given("--offload", "--offload-train", "--offload-rollout"):
        draft.note(
            flag, "on by default if trainer and engines share GPUs; `engine.sleep = false` turns it off"
        )


def topology(draft: Draft) -> None:
    """Sets groups of the policy's servers: those of --prefill-num-servers, or of --sglang-config, whose other
    models become `[[engines]]`.
    """
    for flag in draft.given("--prefill-num-servers"):
        _prefill_servers(draft, flag)
    if draft.given("--sglang-config") and (settings := file_settings(draft, "--sglang-config")) is not None:
        _config_servers(draft, draft.flags["--sglang-config"], settings)
    engine = draft.values.get("engine", {})
    if all("role" not in group for group in engine.get("groups", ())):
        for flag in draft.flags.values():
            if flag.name.startswith(_TRANSFER):
                name = flag.name.removeprefix("--sglang-").replace("-", "_")
                engine.get("sglang", {}).pop(name, None)
                draft.comments.pop(f"engine.sglang.{name}", None)
                draft.note(flag, "no effect: every server computes its prompts itself")


def _prefill_servers(draft: Draft, flag: Flag) -> None:
    """Divides the policy's servers into those that compute prompts and those that generate."""
    trainer = draft.count("--actor-num-nodes", 1) * draft.count("--actor-num-gpus-per-node", 8)
    gpus = trainer if "--colocate" in draft.flags else draft.count("--rollout-num-gpus", 1)
    prefill, servers = draft.count(flag.name, 1), gpus // draft.count("--rollout-num-gpus-per-engine", 1)
    if prefill >= servers:
        draft.note(flag, f"leaves none of {servers} servers to decode")
        return
    for number, (role, count) in enumerate((("prefill", prefill), ("decode", servers - prefill))):
        draft.set(f"engine.groups.{number}.role", role, (flag.name,))
        draft.set(f"engine.groups.{number}.count", count, (flag.name,))


def _config_servers(draft: Draft, flag: Flag, settings: Settings) -> None:
    models = [entry for entry in settings.get("sglang") or [] if isinstance(entry, dict)]
    if not models:
        draft.note(flag, "the file describes no servers")
    for number, entry in enumerate(models):
        listed = entry.get("server_groups") or entry.get("engine_groups") or []
        groups = [group for group in listed if isinstance(group, dict)]
        kinds = [str(group.get("worker_type")) for group in groups]
        if "encoder" in kinds:
            draft.note(flag, "encoders: the servers that compute prompts encode their images, too")
        if "placeholder" in kinds[:-1]:
            draft.note(flag, "placeholders: rlrun's groups follow one another, and free GPUs are the last")
        served = [group for group in groups if group.get("worker_type") in _ROLES]
        path = entry.get("model_path")
        of_policy = entry.get(
            "update_weights", path is None or path == draft.text("--hf-checkpoint") or number == 0
        )
        if of_policy:
            _policy_servers(draft, entry, served)
        else:
            _other_servers(draft, entry, served)


def _policy_servers(draft: Draft, named: Settings, groups: list[Settings]) -> None:
    """Sets `[engine]` for servers that are all alike, else `[[engine.groups]]`."""
    names, sizes = ("--sglang-config",), [_size(draft, named, group) for group in groups]
    if len(set(sizes)) == 1:
        for flag in draft.given("--rollout-num-gpus-per-engine"):
            draft.note(flag, "--sglang-config takes precedence")
        draft.set("engine.tensor", sizes[0], names)
    elif sizes:
        why = "servers of different sizes"
        draft.set("engine.weight_sync", "disk", names, f"{why} read whole files")
        draft.set("engine.weight_check", "none", names, f"{why} have no checksums in common")
    is_alone = len(groups) == 1 and groups[0].get("worker_type") == "regular"
    for number, (group, size) in enumerate(zip(groups, sizes, strict=True)):
        table = "engine" if is_alone else f"engine.groups.{number}"
        if not is_alone:
            draft.set(f"{table}.role", group["worker_type"], names)
            draft.set(f"{table}.count", max(1, int(group.get("num_gpus") or size) // size), names)
            if len(set(sizes)) > 1:
                draft.set(f"{table}.tensor", size, names)
        for name, value in (group.get("overrides") or {}).items():
            draft.server_argument(f"{table}.sglang", name, value, "--sglang-config")


def _other_servers(draft: Draft, named: Settings, groups: list[Settings]) -> None:
    table = f"engines.{len(draft.values.get('engines', []))}"
    name = re.sub(r"[^a-z0-9_-]+", "-", str(named.get("name", "other")).lower()).strip("-_") or "other"
    draft.set(f"{table}.name", name, ("--sglang-config",))
    draft.set(f"{table}.type", "sglang", ("--sglang-config",))
    draft.set(f"{table}.path", str(named.get("model_path") or ""), ("--sglang-config",))
    sizes = [_size(draft, named, group) for group in groups]
    if sizes:
        draft.set(f"{table}.tensor", sizes[0], ("--sglang-config",))
        count = sum(int(group.get("num_gpus", 0)) for group in groups) // sizes[0]
        draft.set(f"{table}.count", max(1, count), ("--sglang-config",))
        for argument, value in (groups[0].get("overrides") or {}).items():
            draft.server_argument(f"{table}.sglang", argument, value, "--sglang-config")


def _size(draft: Draft, named: Settings, group: Settings) -> int:
    """Returns the number of GPUs per server of a group."""
    num_gpus = group.get("num_gpus_per_engine") or named.get("num_gpus_per_engine")
    return int(num_gpus or draft.count("--rollout-num-gpus-per-engine", 1))


def speculation(draft: Draft) -> None:
    """Sets `[engine.speculative]`, and the arguments of servers whose drafts have branches."""
    flags = draft.given(_ALGORITHM, _FOLDER, _TOKENS, _STEPS, _BRANCHES)
    algorithm = _algorithm(draft)
    for flag in flags:
        if draft.given("--rollout-external-engine-addrs"):
            draft.note(flag, "no effect: external engines have their own settings")
        elif algorithm is None:
            draft.note(flag, f"no effect: {_ALGORITHM} names none of rlrun's algorithms")
    if algorithm is None or draft.given("--rollout-external-engine-addrs"):
        return
    draft.set("engine.speculative.algorithm", algorithm, (_ALGORITHM,))
    if algorithm not in ("mtp", "ngram") and (folder := draft.text(_FOLDER)):
        draft.set("engine.speculative.draft_model", folder, (_FOLDER,))
    has_branches = draft.count(_BRANCHES, 1) > 1
    tokens, key = draft.whole(_TOKENS, 0), "engine.speculative.draft_tokens"
    if not has_branches and draft.given(_STEPS):
        draft.set(key, draft.count(_STEPS, 1), (_STEPS, _TOKENS, _BRANCHES))
    elif tokens > 1:
        draft.set(key, tokens - 1, (_TOKENS,), "SGLang counts the token before the draft, too")
    if has_branches:
        for flag in draft.given(_STEPS, _BRANCHES):
            name = flag.name.removeprefix("--sglang-").replace("-", "_")
            draft.set(f"engine.sglang.{name}", draft.count(flag.name, 1), (flag.name,))


def _algorithm(draft: Draft) -> str | None:
    """Returns the `algorithm` of the spec; None if no flag names one that it has.

    SGLang's EAGLE without a draft model uses the policy's own layers for multi-token prediction.
    """
    name = (draft.text(_ALGORITHM) or "").lower()
    if name in ("eagle", "nextn"):
        is_own = draft.text(_FOLDER) in (None, draft.text("--hf-checkpoint"))
        return "mtp" if is_own else "eagle"
    return name if name in _ALGORITHMS else None
