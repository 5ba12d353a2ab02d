"""Rules about `[engine]`: what only SGLang servers have, and which of their arguments a spec may give."""

import sys
from collections.abc import Iterator

from rlrun.specs.job import Spec
from rlrun.specs.problems import Finding
from rlrun.specs.rules import given, no_effect
from rlrun.specs.served_model import served_model
from rlrun.specs.sglang_arguments import OWN, installed_arguments, spelled
from rlrun.specs.spelling import nearest

_WEIGHT_KEYS = ("model", "weight_sync", "weight_bucket", "weight_delta", "weight_check")
_KEYS = {
    "sglang": ("tensor", *_WEIGHT_KEYS, "python", "environment", "sglang"),
    "sleeping": ("sleeping",),
}
"""What engines of one kind alone read."""
_TYPE = (("engine", "type"),)


def engine_keys(spec: Spec) -> Iterator[Finding]:
    """Keys of another kind of engine."""
    for kind, keys in _KEYS.items():
        for key in keys:
            if kind != spec.engine.type and given(spec.engine, key):
                cure = f'remove it, or set `type = "{kind}"`'
                yield no_effect(("engine", key), f"{spec.engine.type} engines do not read it", cure, _TYPE)


def tensor_on_gpus(spec: Spec) -> Iterator[Finding]:
    """Servers over several GPUs are not placed yet."""
    if spec.engine.type == "sglang" and spec.engine.tensor > 1 and spec.cluster.gpus_per_node:
        message = f"a server takes one GPU, found {spec.engine.tensor}"
        others = (*_TYPE, ("cluster", "gpus_per_node"))
        cure = "use more servers (engine.count) instead"
        yield Finding(("engine", "tensor"), message, cure, found=spec.engine.tensor, others=others)


def weight_carrier(spec: Spec) -> Iterator[Finding]:
    """Carriers that reach every server, and keys that they read."""
    if spec.engine.type != "sglang":
        return
    key = ("engine", "weight_sync")
    if spec.engine.weight_sync == "tensor" and spec.cluster.nodes > 1:
        message = "weights in shared memory reach servers of one host alone"
        others = (("cluster", "nodes"),)
        yield Finding(key, message, 'use "broadcast" or "disk"', found="tensor", others=others)
    if spec.engine.weight_delta and spec.engine.weight_sync != "disk":
        cure = 'remove it, or set `weight_sync = "disk"`'
        yield no_effect(("engine", "weight_delta"), "only files on a disk are left out", cure, (key,))
    if given(spec.engine, "weight_check") and spec.cluster.gpus_per_node:
        why, others = "servers on GPUs compute other checksums", (("cluster", "gpus_per_node"),)
        yield no_effect(("engine", "weight_check"), why, "remove it", others)


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
        yield Finding(("deterministic",), message, cure, found=True, others=_TYPE)


def server_arguments(spec: Spec) -> Iterator[Finding]:
    """Names that the installed server has, and that are not rlrun's to set."""
    if spec.engine.type != "sglang" or not spec.engine.sglang:
        return
    python = spec.engine.python or sys.executable
    known = installed_arguments(python, spec.engine.environment)
    for key in spec.engine.sglang:
        name = spelled(key)
        path = ("engine", "sglang", key)
        if name in OWN:
            cure = f"use {OWN[name]}" if OWN[name] else "remove it"
            yield Finding(path, "is set by rlrun", cure, at_value=False, others=_TYPE)
        elif known is not None and name not in known:
            meant = nearest(name, known)
            suggestion = meant and meant.replace("-", "_")
            message = f"the SGLang server of {python} has no argument --{name}"
            yield Finding(path, message, None, suggestion, at_value=False, others=_TYPE)


ENGINE_RULES = (
    engine_keys,
    tensor_on_gpus,
    weight_carrier,
    served_model,
    reproducible_server,
    server_arguments,
)
