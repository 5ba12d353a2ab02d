"""Rules about `[engine]` and `[[engines]]`: what each kind has, and what names lead where."""

from collections.abc import Iterator

from rlrun.specs.engine_sections import POLICY, engine_sections
from rlrun.specs.job import Spec
from rlrun.specs.layout import sleeps
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding
from rlrun.specs.rules import given, no_effect
from rlrun.specs.served_model import served_model
from rlrun.specs.server_size import COPIES, STAGES, copies_of, key_of, stages_of
from rlrun.specs.sglang_arguments import spelled
from rlrun.specs.spelling import nearest
from rlrun.specs.weight_sync import carrier_of, shares_gpus, shares_memory

_OF_WEIGHTS = ("model", "weight_sync", "weight_bucket", "weight_delta", "weight_check")
_OF_SERVERS = ("python", "environment", "sglang", "router", "sglang_router")
_OF_OTHERS = ("urls", "api_key")
_OF_PROCESSES = ("count", "max_running", "max_cache_tokens", "port")
_UNREAD: dict[str, tuple[str, ...]] = {
    "native": ("tensor", *_OF_WEIGHTS, *_OF_SERVERS, *_OF_OTHERS, "sleeping"),
    "sglang": (*_OF_OTHERS, "sleeping"),
    "external": ("model", "weight_check", *_OF_SERVERS, "sleeping", *_OF_PROCESSES),
    "sleeping": ("tensor", *_OF_WEIGHTS, *_OF_SERVERS, *_OF_OTHERS),
}
"""Keys that a kind of engine does not read."""
_READERS = {"urls": "external", "api_key": "external", "sleeping": "sleeping"}
"""Who reads a key, where it is not SGLang servers."""
_TYPE = (("engine", "type"),)
_TAKEN = ("trainer", "engine", "driver", "reward")
"""What else the job's processes are called."""


def engine_keys(spec: Spec) -> Iterator[Finding]:
    """Keys of another kind of engine."""
    for path, section in engine_sections(spec):
        for key in _UNREAD[section.type]:
            if given(section, key):
                cure = f'remove it, or set `type = "{_READERS.get(key, "sglang")}"`'
                cure = "remove it" if key in _OF_PROCESSES else cure
                why = f"{section.type} engines do not read it"
                yield no_effect((*path, key), why, cure, ((*path, "type"),))


def external_urls(spec: Spec) -> Iterator[Finding]:
    """Engines that run elsewhere are somewhere."""
    for path, section in engine_sections(spec):
        if section.type == "external" and not section.urls:
            cure = 'add `urls = ["http://HOST:PORT"]`'
            yield Finding((*path, "type"), "external engines need their addresses", cure, found="external")


def giving_way(spec: Spec) -> Iterator[Finding]:
    """Only engines of ours that share the trainer's devices have to give way."""
    if not spec.engine.sleep:
        return
    path: KeyPath = ("engine", "sleep")
    if spec.cluster.placement != "colocated":
        why, others = "engines have devices of their own", (("cluster", "placement"),)
        yield no_effect(path, why, 'remove it, or set `cluster.placement = "colocated"`', others)
    elif spec.engine.type in ("external", "sleeping"):
        yield no_effect(path, f"{spec.engine.type} engines have no memory to give", "remove it", _TYPE)


def server_parallelism(spec: Spec) -> Iterator[Finding]:
    """Ways to split a server that weights cannot follow, or that are `count` by another name."""
    for path, section in engine_sections(spec):
        if section.type != "sglang":
            continue
        copies, stages = key_of(section, COPIES), key_of(section, STAGES)
        if copies and copies_of(section) > 1:
            message = "a server holds the model once: updates of the weights tell its copies not apart"
            cure = "use more servers (count), or attn_dp_size"
            yield Finding((*path, "sglang", copies), message, cure, at_value=False)
        if stages and stages_of(section) > 1 and path == POLICY and carrier_of(spec) != "disk":
            message = "each stage of a pipeline wants other weights, and can only pick them from files"
            cure = 'add `weight_sync = "disk"` under [engine]'
            others: tuple[KeyPath, ...] = (("engine", "weight_sync"),)
            yield Finding((*path, "sglang", stages), message, cure, at_value=False, others=others)


def weight_carrier(spec: Spec) -> Iterator[Finding]:
    """Carriers that reach every server, and keys that they read."""
    if spec.engine.type not in ("sglang", "external"):
        return
    key = ("engine", "weight_sync")
    if spec.engine.weight_sync == "tensor" and spec.cluster.nodes > 1 and shares_memory(spec):
        message = "weights in shared memory reach servers of one host alone"
        others = (("cluster", "nodes"),)
        yield Finding(key, message, 'use "broadcast" or "disk"', found="tensor", others=others)
    if spec.engine.type == "sglang" and spec.engine.weight_sync == "broadcast" and shares_gpus(spec):
        message = "NCCL takes no two processes of one GPU, and trainer and servers share theirs"
        others = (("cluster", "placement"),)
        yield Finding(key, message, 'use "tensor" or "disk"', found="broadcast", others=others)
    if spec.engine.weight_sync == "tensor" and spec.engine.type == "external":
        message, others = "nobody knows whether external engines share memory with the trainer", _TYPE
        yield Finding(key, message, 'use "broadcast" or "disk"', found="tensor", others=others)
    default = "disk" if spec.engine.type == "external" else None
    if spec.engine.weight_delta and (spec.engine.weight_sync or default) != "disk":
        cure = 'remove it, or set `weight_sync = "disk"`'
        yield no_effect(("engine", "weight_delta"), "only files on a disk are left out", cure, (key,))
    if given(spec.engine, "weight_check") and spec.cluster.gpus_per_node:
        why, others = "servers on GPUs compute other checksums", (("cluster", "gpus_per_node"),)
        yield no_effect(("engine", "weight_check"), why, "remove it", others)


def streams_to_shared_devices(spec: Spec) -> Iterator[Finding]:
    """Weights that the trainer must hand over itself, to engines that start again when it has no memory."""
    if spec.engine.type != "sglang" or not sleeps(spec) or not spec.fault_tolerance.engine_restarts:
        return
    broadcast = carrier_of(spec) == "broadcast" and not shares_gpus(spec)
    if broadcast or (carrier_of(spec) == "tensor" and spec.engine.weight_bucket is not None):
        key = ("engine", "weight_sync" if broadcast else "weight_bucket")
        message = "to an engine that is started again meanwhile a trainer without devices cannot give weights"
        cure = 'use weight_sync = "tensor" without weight_bucket, or "disk"; or let no engine start again'
        others = (("engine", "sleep"), ("cluster", "placement"), ("fault_tolerance", "engine_restarts"))
        yield Finding(key, message, cure, at_value=False, others=others)


def reproducible_server(spec: Spec) -> Iterator[Finding]:
    """A server draws by the seeds it is given only when it is told to."""
    if not spec.deterministic or spec.engine.type != "sglang":
        return
    name = "enable_deterministic_inference"
    told = spec.engine.sglang.get(name) or spec.engine.sglang.get(spelled(name))
    if not spec.cluster.gpus_per_node:
        message = "an SGLang server samples reproducibly only on a GPU"
        cure = 'remove this, or use `type = "native"`'
        yield Finding(("deterministic",), message, cure, found=True, others=_TYPE)
    elif not told:
        message = f"an SGLang server samples reproducibly only with {name}"
        cure = f"add `{name} = true` under [engine.sglang], or remove this"
        yield Finding(("deterministic",), message, cure, found=True, others=(("engine", "type"),))


def engine_names(spec: Spec) -> Iterator[Finding]:
    """Names of their own, each with a model."""
    names = [section.name for section in spec.engines]
    for number, section in enumerate(spec.engines):
        path: KeyPath = ("engines", number)
        if section.name in names[:number]:
            message = f'two engines are named "{section.name}"'
            yield Finding((*path, "name"), message, "give each its own name", found=section.name)
        if section.name in _TAKEN:
            message = f'other processes of a job are called "{section.name}"'
            yield Finding((*path, "name"), message, "choose another name", found=section.name)
        if section.path is None and section.type != "external":
            cure = 'add `path = "…"`'
            yield Finding(path, f'the engines "{section.name}" have no model', cure, at_value=False)


def engine_references(spec: Spec) -> Iterator[Finding]:
    """Whoever names engines names some that there are."""
    names = [section.name for section in spec.engines]
    asked: list[tuple[KeyPath, object]] = [
        (("reference", "engine"), spec.reference.engine),
        *(
            (("rewards", number, "engine"), reward.params.get("engine"))
            for number, reward in enumerate(spec.rewards)
            if reward.type == "llm_judge"
        ),
    ]
    if spec.teacher is not None:
        asked.append((("teacher", "engine"), spec.teacher.engine))
    for path, name in asked:
        if isinstance(name, str) and name not in names:
            message = f'there are no engines named "{name}"'
            cure = f'add a table [[engines]] with `name = "{name}"`'
            yield Finding(path, message, cure, nearest(name, names), name)


ENGINE_RULES = (
    engine_keys,
    external_urls,
    giving_way,
    server_parallelism,
    weight_carrier,
    streams_to_shared_devices,
    served_model,
    reproducible_server,
    engine_names,
    engine_references,
)
