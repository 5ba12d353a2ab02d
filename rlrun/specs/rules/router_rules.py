"""Rules about the arguments of the SGLang server and router."""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.specs.derived.engine_groups import has_prefill_servers
from rlrun.specs.derived.engine_sections import POLICY, engine_sections
from rlrun.specs.derived.sglang_arguments import ROUTER, SERVER, Program, flag_name, installed_arguments
from rlrun.specs.local_code import is_local_code_allowed, is_own_interpreter
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.problems.spelling import nearest
from rlrun.specs.rules.shared_rules import no_effect
from rlrun.specs.sections.job import Spec

_OF_POLICY = {"trust-remote-code": "model.trust_remote_code"}
"""Arguments that only rlrun sets for the policy's servers; the models of `[[engines]]` are not hashed."""


_Arguments = tuple[KeyPath, str, Program, Mapping[str, Any]]
"""The table of a program's arguments: its key, the interpreter, the program, the arguments."""


def own_arguments(spec: Spec) -> Iterator[Finding]:
    """Arguments must not be ones that rlrun sets."""
    for path, _, program, arguments in _tables(spec):
        for key in arguments:
            known, spec_key = _set_by_rlrun(path, program, flag_name(key))
            if known:
                cure = f"set {spec_key} instead" if spec_key else "remove it"
                related = ((*path[:-1], "type"),)
                yield Finding((*path, key), "is set by rlrun", cure, at_value=False, related=related)


def separate_prefill(spec: Spec) -> Iterator[Finding]:
    """Settings of a transfer need groups of servers that prefill and others that decode."""
    if has_prefill_servers(spec):
        return
    for path, _, program, arguments in _tables(spec):
        for key in arguments:
            name = flag_name(key)
            if program is SERVER and name.startswith("disaggregation-") and name not in program.own:
                message = "no group of servers has a role, so every server computes its prompts itself"
                cure = 'remove it, or add [[engine.groups]] with role = "prefill" and role = "decode"'
                yield no_effect((*path, key), message, cure)


def known_arguments(spec: Spec) -> Iterator[Finding]:
    """Arguments must exist in the installed server or router.

    An interpreter that the spec names is asked only if the user has allowed to run it.
    """
    for table in _tables(spec):
        if is_own_interpreter(table[1]) or is_local_code_allowed():
            yield from _unknown_arguments(*table)


def launched_arguments(spec: Spec) -> Iterator[Finding]:
    """As `known_arguments`, for interpreters that are not asked before a launch, which runs them anyway."""
    for table in _unasked_tables(spec):
        yield from _unknown_arguments(*table)


def unasked_interpreters(spec: Spec) -> Iterator[Finding]:
    """Warns of arguments that are not checked, because the spec names the interpreter that knows them."""
    for path, python, program, _ in _unasked_tables(spec):
        message = f"its names are not checked before the launch, because that would run {python}"
        cure = f"to ask its {program.what} now, if you trust it: --allow-local-plugins"
        yield Finding(path, message, cure, at_value=False)


def _unasked_tables(spec: Spec) -> Iterator[_Arguments]:
    if not is_local_code_allowed():
        yield from (table for table in _tables(spec) if not is_own_interpreter(table[1]))


def _tables(spec: Spec) -> Iterator[_Arguments]:
    """Yields every table of arguments that is not empty."""
    for path, section in engine_sections(spec):
        if section.type != "sglang":
            continue
        python = section.python or sys.executable
        if section.sglang:
            yield (*path, "sglang"), python, SERVER, section.sglang
        if section.sglang_router and section.router == "sglang-router":
            yield (*path, "sglang_router"), python, ROUTER, section.sglang_router


def router(spec: Spec) -> Iterator[Finding]:
    """Only the policy's engines have a router."""
    for path, section in engine_sections(spec):
        if section.type == "sglang" and section.router == "sglang-router" and path != POLICY:
            message = "only the policy's engines ([engine]) can have a router"
            yield Finding((*path, "router"), message, "remove it", found=section.router)


def _unknown_arguments(
    path: KeyPath, python: str, program: Program, arguments: Mapping[str, Any]
) -> Iterator[Finding]:
    valid_arguments = installed_arguments(python, program)
    if valid_arguments is None:
        return
    for key in arguments:
        name = flag_name(key)
        if name in valid_arguments or _set_by_rlrun(path, program, name)[0]:
            continue
        meant = nearest(name, valid_arguments)
        suggestion = meant and meant.replace("-", "_")
        message = f"the {program.what} of {python} has no argument --{name}"
        cure = f"did you mean `{suggestion}`?" if suggestion else "remove it"
        related = ((*path[:-1], "type"),)
        yield Finding((*path, key), message, cure, suggestion, at_value=False, related=related)


def _set_by_rlrun(path: KeyPath, program: Program, name: str) -> tuple[bool, str | None]:
    """Returns whether rlrun sets an argument, and the key of the spec that decides it, if there is one."""
    own = dict(program.own) | (_OF_POLICY if path[:-1] == POLICY else {})
    return name in own, own.get(name)


ROUTER_RULES = (own_arguments, separate_prefill, known_arguments, router)
