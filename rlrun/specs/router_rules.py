"""Rules about the arguments of SGLang's programs, and about what a router between them can carry."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.specs.engine import EngineSpec
from rlrun.specs.engine_sections import POLICY, engine_sections
from rlrun.specs.job import Spec
from rlrun.specs.positions import KeyPath
from rlrun.specs.problems import Finding
from rlrun.specs.rules import no_effect
from rlrun.specs.sglang_arguments import ROUTER, SERVER, Program, installed_arguments, spelled
from rlrun.specs.spelling import nearest


def program_arguments(spec: Spec) -> Iterator[Finding]:
    """Names that the installed server and router have, and that are not rlrun's to set."""
    for path, section in engine_sections(spec):
        if section.type == "sglang":
            yield from _unknown((*path, "sglang"), section, SERVER, section.sglang)
            if section.router == "sglang-router":
                yield from _unknown((*path, "sglang_router"), section, ROUTER, section.sglang_router)


def router(spec: Spec) -> Iterator[Finding]:
    """A router where there is one, and nothing that it cannot carry."""
    for path, section in engine_sections(spec):
        key = (*path, "router")
        if section.type != "sglang":
            continue
        if section.router == "rlrun" and section.sglang_router:
            why, cure = (
                "rlrun routes by itself",
                'remove it, or add `router = "sglang-router"` under [engine]',
            )
            yield no_effect((*path, "sglang_router"), why, cure, (key,))
        elif section.router == "sglang-router" and path != POLICY:
            message = "only the policy's engines are asked by way of a router"
            yield Finding(key, message, "remove it", found=section.router)
    if spec.engine.type == "sglang" and spec.engine.router == "sglang-router":
        yield from _not_carried(spec, ("engine", "router"))


def _not_carried(spec: Spec, key: KeyPath) -> Iterator[Finding]:
    if spec.deterministic:
        message = "which engine a router chooses, and what runs there together, depends on timing"
        cure = "remove it, or `deterministic`"
        yield Finding(key, message, cure, found="sglang-router", others=(("deterministic",),))
    if spec.trainer.moe.routing_replay == "engine":
        message = "sglang-router leaves out of a request that the server shall tell the experts of its tokens"
        cure, replay = "remove it, or set routing_replay to another", ("trainer", "moe", "routing_replay")
        yield Finding(key, message, cure, found="sglang-router", others=(replay,))


def _unknown(
    path: KeyPath, section: EngineSpec, program: Program, arguments: Mapping[str, Any]
) -> Iterator[Finding]:
    if not arguments:
        return
    python = section.python or sys.executable
    known = installed_arguments(python, section.environment, program)
    others = ((*path[:-1], "type"),)
    for key in arguments:
        name = spelled(key)
        if name in program.own:
            decides = program.own[name]
            cure = f"use {decides}" if decides else "remove it"
            yield Finding((*path, key), "is set by rlrun", cure, at_value=False, others=others)
        elif known is not None and name not in known:
            meant = nearest(name, known)
            suggestion = meant and meant.replace("-", "_")
            message = f"the {program.what} of {python} has no argument --{name}"
            yield Finding((*path, key), message, None, suggestion, at_value=False, others=others)


ROUTER_RULES = (program_arguments, router)
