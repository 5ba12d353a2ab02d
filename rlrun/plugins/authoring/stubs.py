"""Writes classes of plugins that remain to be written, for importers whose scripts name functions.

    a function of another trainer ──▶ Unwritten ──▶ stub_module ──▶ a file beside the imported spec

The methods of such a class raise NotImplementedError. While a spec names a class with the attribute
`unwritten`, `rlrun validate` warns, and `rlrun launch` refuses the spec.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from textwrap import dedent, indent

from rlrun.plugins.authoring.scaffold import TEMPLATES
from rlrun.plugins.registry import find
from rlrun.specs.unwritten import Unwritten

_MODULE = '''\
"""Plugins that remain to be written: {source} names functions of its own.

Write the methods of each class, and delete its line `unwritten` (docs/plugins.md).
"""

{imports}
'''
_PARAMS = '''

class {name}Params(BaseModel):
    """The keys of {name} in the spec, beside `type`."""

    model_config = ConfigDict(extra="forbid")
'''
_CLASS = '''

class {name}{bases}:
    """Replaces {origin}."""

{attributes}
{methods}
'''
_PLAIN = """\
    Params = {name}Params
    api_version = 1
    unwritten = "{origin}"

    def __init__(self, params: {name}Params) -> None:
        self.params = params
"""
_PYDANTIC = "from pydantic import BaseModel, ConfigDict"
_Method = ast.FunctionDef | ast.AsyncFunctionDef


def stub_module(stubs: Sequence[Unwritten], source: str) -> str:
    """Returns the text of a Python file with these classes. `source`: the imported file."""
    return _MODULE.format(source=_quoted(source), imports=_imports(stubs)) + "".join(map(_class, stubs))


def _quoted(text: str) -> str:
    """Returns a text of a foreign script without anything that could end a string of Python."""
    return "".join({"\\": "/", '"': "'"}.get(letter, letter) for letter in text if letter.isprintable())


def _imports(stubs: Sequence[Unwritten]) -> str:
    """Returns the imports of the names in the classes: those of Python, pydantic's and rlrun's."""
    origins: dict[str, str] = {}
    used: set[str] = set()
    for stub in stubs:
        origins |= _origins(TEMPLATES[stub.kind].imports)
        nodes = (node for method in _methods(stub) for node in ast.walk(method))
        used |= {node.id for node in nodes if isinstance(node, ast.Name)}
        if stub.base is not None:
            module, _, base = find(stub.kind, stub.base).target.partition(":")
            origins[base] = module
            used.add(base)
    names: dict[str, list[str]] = {}
    for name in sorted(used & origins.keys()):
        names.setdefault(origins[name], []).append(name)
    lines = {module: f"from {module} import {', '.join(names[module])}" for module in sorted(names)}
    own = [line for module, line in lines.items() if module.startswith("rlrun.")]
    of_python = [line for line in lines.values() if line not in own]
    pydantic = [_PYDANTIC] if any(stub.base is None for stub in stubs) else []
    return "\n\n".join("\n".join(part) for part in (of_python, pydantic, own) if part)


def _origins(imports: str) -> Mapping[str, str]:
    """Returns the module of each name that `from … import …` lines import."""
    nodes = (node for node in ast.parse(imports).body if isinstance(node, ast.ImportFrom))
    return {alias.name: str(node.module) for node in nodes for alias in node.names}


def _class(stub: Unwritten) -> str:
    origin = _quoted(stub.origin)
    bases, params, attributes = "", _PARAMS.format(name=stub.name), _PLAIN
    if stub.base is not None:
        bases = f"({find(stub.kind, stub.base).target.partition(':')[2]})"
        params, attributes = "", '    unwritten = "{origin}"\n'
    methods = "\n\n".join(indent(ast.unparse(method), "    ") for method in _methods(stub))
    attributes = attributes.format(name=stub.name, origin=origin)
    return params + _CLASS.format(
        name=stub.name, bases=bases, origin=origin, attributes=attributes, methods=methods
    )


def _methods(stub: Unwritten) -> Iterator[_Method]:
    """Yields the methods of a new plugin of the kind, each with its docstring and without its code."""
    for node in ast.parse(dedent(TEMPLATES[stub.kind].methods)).body:
        assert isinstance(node, _Method), "templates have only methods"
        if not stub.methods or node.name in stub.methods:
            reason = f"{stub.name}.{node.name} remains to be written"
            node.body = [node.body[0], *ast.parse(f"raise NotImplementedError({reason!r})").body]
            yield node
