"""Rules about `[engine]` and `[[engines]]`: the keys of each type of engine, weight updates, and names."""

from collections.abc import Iterator

from rlrun.specs.derived.default_engine import SERVER_KEYS, SGLANG_KEYS
from rlrun.specs.derived.engine_sections import POLICY, engine_sections
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.derived.server_size import COPIES, STAGES, argument_key, copies_of, stages_of
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.derived.weight_sync import carrier_of, shares_gpus, shares_memory, why_no_elements
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.rules.engines.speculative_rules import SPECULATIVE_RULES
from rlrun.specs.rules.served_model import served_model
from rlrun.specs.rules.shared_rules import is_given, no_effect
from rlrun.specs.sections.engine import EngineType
from rlrun.specs.sections.job import Spec

_EXTERNAL_KEYS = ("urls", "api_key")
_PROCESS_KEYS = ("count", "max_running", "max_cache_tokens", "port")
_NATIVE_KEYS = ("kept_samples",)
_UNREAD_KEYS: dict[EngineType, tuple[str, ...]] = {
    "native": (*SGLANG_KEYS, *_EXTERNAL_KEYS, "sleeping"),
    "sglang": (*_EXTERNAL_KEYS, "sleeping", *_NATIVE_KEYS),
    "external": (
        "model",
        "weight_check",
        *SERVER_KEYS,
        "sleeping",
        "speculative",
        *_PROCESS_KEYS,
        *_NATIVE_KEYS,
    ),
    "sleeping": (*SGLANG_KEYS, *_EXTERNAL_KEYS, "speculative", *_NATIVE_KEYS),
}
"""For each type of engine, the keys that it does not read."""
_READERS = {
    "urls": "external",
    "api_key": "external",
    "sleeping": "sleeping",
    "kept_samples": "native",
    "speculative": "native",
}
"""The type of engine that reads a key; "sglang" for every other key."""
_TYPE = (("engine", "type"),)
_RESERVED_NAMES = ("trainer", "engine", "driver", "reward")
"""Names that other processes of a job have."""


def engine_keys(spec: Spec) -> Iterator[Finding]:
    """Reports keys that the chosen type of engine does not read."""
    for path, section in engine_sections(spec):
        for key in _UNREAD_KEYS[section.type] if section.type else ():
            if is_given(section, key):
                cure = f'remove it, or set `type = "{_READERS.get(key, "sglang")}"`'
                cure = "remove it" if key in _PROCESS_KEYS else cure
                why = f"{section.type} engines do not read this key"
                related = ((*path, "type"), ("cluster", "gpus_per_node"))
                yield no_effect((*path, key), why, cure, related)


def external_urls(spec: Spec) -> Iterator[Finding]:
    """External engines need addresses: rlrun does not start them."""
    for path, section in engine_sections(spec):
        if section.type == "external" and not section.urls:
            cure = 'add `urls = ["http://HOST:PORT"]`'
            message = "external engines need addresses, and none is given"
            yield Finding((*path, "type"), message, cure, found="external")


def kept_samples_differ(spec: Spec) -> Iterator[Finding]:
    """A deterministic job does not depend on what an engine still has in its cache."""
    key = ("engine", "kept_samples")
    if spec.deterministic and spec.engine.type == "native" and spec.engine.given("kept_samples"):
        message = "the rounding of a later turn depends on what is cached, so deterministic jobs keep nothing"
        related = (("deterministic",),)
        yield Finding(key, message, "remove it", found=spec.engine.given("kept_samples"), related=related)


def engine_sleep(spec: Spec) -> Iterator[Finding]:
    """Only engines that rlrun starts on the trainer's devices can sleep while the trainer works."""
    if not spec.engine.given("sleep"):
        return
    path: KeyPath = ("engine", "sleep")
    if spec.cluster.placement != "colocated":
        why, related = "engines do not share devices with the trainer", (("cluster", "placement"),)
        yield no_effect(path, why, 'remove it, or set `cluster.placement = "colocated"`', related)
    elif spec.engine.type in ("external", "sleeping"):
        yield no_effect(
            path, f"{spec.engine.type} engines hold no memory that they could free", "remove it", _TYPE
        )


def server_parallelism(spec: Spec) -> Iterator[Finding]:
    """Reports ways to split a server over GPUs for which weights cannot be updated."""
    for path, section in engine_sections(spec):
        if section.type != "sglang":
            continue
        copies, stages = argument_key(section, COPIES), argument_key(section, STAGES)
        if copies and copies_of(section) > 1:
            message = "a server must hold one copy of the model: weight updates cannot address several copies"
            cure = f"remove {copies}, and start more servers (count) or set attn_dp_size"
            yield Finding((*path, "sglang", copies), message, cure, at_value=False)
        if stages and stages_of(section) > 1 and path == POLICY and carrier_of(spec) != "disk":
            message = "pipeline stages of a server need different weights, which they can only read from disk"
            cure = 'add `weight_sync = "disk"` under [engine]'
            related: tuple[KeyPath, ...] = (("engine", "weight_sync"),)
            yield Finding((*path, "sglang", stages), message, cure, at_value=False, related=related)


def weight_carrier(spec: Spec) -> Iterator[Finding]:
    """The chosen way to send weights reaches every server, and its settings have an effect."""
    if spec.engine.type not in ("sglang", "external"):
        return
    key, given = ("engine", "weight_sync"), spec.engine.given("weight_sync")
    if given == "tensor" and spec.cluster.nodes > 1 and shares_memory(spec):
        message = "weights in shared memory only reach servers on the trainer's host"
        related = (("cluster", "nodes"),)
        yield Finding(key, message, 'use "broadcast" or "disk"', found="tensor", related=related)
    if spec.engine.type == "sglang" and given == "broadcast" and shares_gpus(spec):
        message = "NCCL cannot connect two processes on one GPU, and the trainer and the servers share GPUs"
        related = (("cluster", "placement"),)
        yield Finding(key, message, 'use "tensor" or "disk"', found="broadcast", related=related)
    if given == "tensor" and spec.engine.type == "external":
        message, related = "external engines may not share memory with the trainer", _TYPE
        yield Finding(key, message, 'use "broadcast" or "disk"', found="tensor", related=related)


def weight_delta(spec: Spec) -> Iterator[Finding]:
    """Engines can take part of the weights."""
    key, chosen = ("engine", "weight_delta"), spec.engine.weight_delta
    if chosen == "files" and (spec.engine.type == "native" or carrier_of(spec) != "disk"):
        cure = 'use "elements", or set `weight_sync = "disk"`'
        why = "only SGLang servers that read weights from disk can leave out files"
        yield no_effect(key, why, cure, (("engine", "weight_sync"), *_TYPE))
    if chosen == "elements" and (reason := why_no_elements(spec)) is not None:
        related = (("engine", "weight_sync"), *_TYPE)
        yield Finding(key, reason, 'use "off", or remove it', found="elements", related=related)


def reproducible_server(spec: Spec) -> Iterator[Finding]:
    """A server follows the seeds of requests only on a GPU and with an argument of its own."""
    if not spec.deterministic or spec.engine.type != "sglang" or rounds_as_target(spec):
        return
    name = "enable_deterministic_inference"
    enabled = spec.engine.sglang.get(name) or spec.engine.sglang.get(flag_name(name))
    if not spec.cluster.gpus_per_node:
        message = "an SGLang server samples reproducibly only on a GPU"
        cure = 'remove `deterministic`, or set engine.type = "native"'
        yield Finding(("deterministic",), message, cure, found=True, related=_TYPE)
    elif not enabled:
        message = f"an SGLang server samples reproducibly only with {name}"
        cure = f"add `{name} = true` under [engine.sglang], or remove `deterministic`"
        yield Finding(("deterministic",), message, cure, found=True, related=(("engine", "type"),))


def engine_names(spec: Spec) -> Iterator[Finding]:
    """Each of `[[engines]]` has a model and a name that nothing else has."""
    names = [section.name for section in spec.engines]
    for number, section in enumerate(spec.engines):
        path: KeyPath = ("engines", number)
        if section.name in names[:number]:
            message = f'the name "{section.name}" is used by two [[engines]]'
            yield Finding((*path, "name"), message, "choose another name", found=section.name)
        if section.name in _RESERVED_NAMES:
            message = f'the name "{section.name}" is reserved for other processes of the job'
            yield Finding((*path, "name"), message, "choose another name", found=section.name)
        if section.path is None and section.adapter is None and section.type != "external":
            cure = 'add `path = "…"`, or `adapter = "…"` for an adapter of the policy\'s model'
            related = ((*path, "path"), (*path, "adapter"))
            message = f'engine "{section.name}" has no model'
            yield Finding(path, message, cure, at_value=False, related=related)


def engine_references(spec: Spec) -> Iterator[Finding]:
    """Every referenced engine must exist in `[[engines]]`."""
    names = [section.name for section in spec.engines]
    references: list[tuple[KeyPath, object]] = [
        (("reference", "engine"), spec.reference.engine),
        *(
            (("rewards", number, "engine"), reward.params.get("engine"))
            for number, reward in enumerate(spec.rewards)
            if reward.type == "llm_judge"
        ),
    ]
    if spec.teacher is not None:
        references.append((("teacher", "engine"), spec.teacher.engine))
    for path, name in references:
        if isinstance(name, str) and name not in names:
            suggestion = nearest(name, names)
            message = f'no table of [[engines]] is named "{name}"'
            cure = f'add a table [[engines]] with `name = "{name}"`'
            cure = f'did you mean "{suggestion}"?' if suggestion else cure
            yield Finding(path, message, cure, suggestion, name, related=(("engines",),))


ENGINE_RULES = (
    engine_keys,
    external_urls,
    engine_sleep,
    kept_samples_differ,
    server_parallelism,
    weight_carrier,
    weight_delta,
    served_model,
    reproducible_server,
    *SPECULATIVE_RULES,
    engine_names,
    engine_references,
)
