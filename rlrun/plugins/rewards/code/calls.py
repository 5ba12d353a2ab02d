"""Lets tests call a program's functions, although tests and program cannot see each other's code.

    tests, in a jail of their own ── requests (descriptor 4) ──▶ program, in another jail: serve()
      run_tests(), Remote         ◀── replies (descriptor 3) ──

Each request and each reply is a line of JSON that contains only plain data. Any other object stays in the
program and is referred to by a number; reading its attributes and calling it are requests too. A test
therefore compares its own copies, and no method of the program (an `__eq__` that always answers True) runs.

This module imports nothing of rlrun, because its source is prepended to the code that runs in each jail.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing these at run time would slow down every test
    from collections.abc import Callable
    from typing import Any

MOST_ITEMS = 10_000
"""Largest number of items that are taken from an iterator; it is sent as a list of its items."""
SAFE_INTEGER = 1 << 63
"""Larger integers are sent as hexadecimal text, which has no limit; Python's decimals have 4,300 digits."""
_COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "dict": dict,
    "iterator": iter,
}
_MODULES = {"np": "numpy", "numpy": "numpy"}
"""Packages that tests use without an import, since they were written to run after the program's imports."""


def packed(value: Any, keep: Callable[[Any], int]) -> Any:
    """Returns the value in a form that JSON can hold. `keep` numbers the objects that are not plain data."""
    if value is None or isinstance(value, bool | float | str):
        return value
    if isinstance(value, int):
        return int(value) if -SAFE_INTEGER < value < SAFE_INTEGER else {"int": hex(value)}
    if isinstance(value, list):
        return [packed(item, keep) for item in value]
    if isinstance(value, dict):
        return {"dict": [[packed(key, keep), packed(item, keep)] for key, item in value.items()]}
    for kind in (tuple, set, frozenset):
        if isinstance(value, kind):
            return {kind.__name__: [packed(item, keep) for item in value]}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if hasattr(type(value), "tolist"):  # arrays
        return packed(value.tolist(), keep)
    if hasattr(type(value), "__next__"):
        return {"iterator": [packed(item, keep) for item in islice(value, MOST_ITEMS)]}
    return {"object": keep(value)}


def unpacked(data: Any, find: Callable[[int], Any]) -> Any:
    """Returns the value that was packed. `find` returns the object with a number."""
    if isinstance(data, list):
        return [unpacked(item, find) for item in data]
    if not isinstance(data, dict):
        return data
    ((kind, content),) = data.items()
    if kind in _COLLECTIONS:
        return _COLLECTIONS[kind]([unpacked(item, find) for item in content])
    plain: dict[str, Callable[[Any], Any]] = {
        "int": lambda text: int(text, 16),
        "bytes": bytes.fromhex,
        "complex": lambda pair: complex(*pair),
        "range": lambda three: range(*three),
        "object": find,
    }
    return plain[kind](content)


def run_program(source: str) -> dict[str, Any]:
    """Runs the program as a module and returns its global names."""
    module = type(sys)("program")
    sys.modules["program"] = module
    exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def serve(source: str) -> None:
    """Runs the program, then answers requests until the tests end."""
    scope = run_program(source)
    held_values: list[Any] = []

    def keep(value: Any) -> int:
        held_values.append(value)
        return len(held_values) - 1

    def answer(kind: str, target: Any, *payload: Any) -> Any:
        if kind == "name":
            return [packed(scope[target], keep)] if target in scope else []
        if kind == "attribute":
            return packed(getattr(held_values[target], payload[0]), keep)
        arguments, named = (
            unpacked(payload[0], held_values.__getitem__),
            unpacked(payload[1], held_values.__getitem__),
        )
        value = held_values[target](*arguments, **named)
        # A function that returns None may have changed its arguments instead: send them back.
        changed = arguments if value is None else []
        return [packed(value, keep), packed(changed, keep)]

    with os.fdopen(3, "rb") as requests, os.fdopen(4, "wb", buffering=0) as replies:
        for line in requests:
            try:
                reply = {"value": answer(*json.loads(line))}
            except Exception as error:
                reply = {"error": [type(error).__name__, str(error)]}
            replies.write(json.dumps(reply).encode() + b"\n")
    os._exit(0)


def call_once(source: str) -> None:
    """Runs the program, then calls one function of it.

    Reads `[name, arguments]` from descriptor 3 and writes the result to descriptor 4, both as JSON.
    """
    scope = run_program(source)
    with os.fdopen(3, "rb") as request:
        name, arguments = json.loads(request.read())
    function = scope.get(name) or getattr(scope["Solution"](), name)
    with os.fdopen(4, "wb") as reply:
        reply.write(json.dumps(function(*arguments)).encode())
    os._exit(0)


class Remote:
    """A test's handle of an object in the program."""

    __slots__ = ("_ask", "_number")

    def __init__(self, number: int, ask: Callable[..., Any]) -> None:
        self._number = number
        self._ask = ask

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._ask("attribute", self, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        value, changed = self._ask("call", self, list(arguments), named)
        if value is None:  # otherwise, the program could change the values that its result is compared with
            for argument, content in zip(arguments, changed, strict=True):
                _become(argument, content)
        return value


def _become(argument: Any, content: Any) -> None:
    """Gives a list, dict or set the content that the program left in its copy."""
    if type(argument) is not type(content):
        return
    if isinstance(argument, list):
        argument[:] = content
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(content)


def run_tests(code: str) -> None:
    """Runs the tests and exits with status 0 if they pass, else 1.

    In the tests, names that only the program defines refer to its objects, by `Remote`.
    """
    replies, requests = os.fdopen(3, "rb"), os.fdopen(4, "wb", buffering=0)

    def ask(kind: str, target: Any, *payload: Any) -> Any:
        request = [kind, _number(target) if kind != "name" else target, *payload]
        if kind == "call":
            request[2:] = [packed(item, _number) for item in payload]
        requests.write(json.dumps(request).encode() + b"\n")
        line = replies.readline()
        if not line:
            raise SystemExit("the program has ended")
        reply = json.loads(line)
        if "error" in reply:
            raise _error(*reply["error"])
        return unpacked(reply["value"], lambda number: Remote(number, ask))

    scope: dict[str, Any] = {"__name__": "__main__"}
    try:
        for name in _names(code):
            module = _MODULES.get(name, name)
            if module != name or module in sys.stdlib_module_names:
                scope[name] = __import__(module)
            elif answered := ask("name", name):
                scope[name] = answered[0]
        exec(compile(code, "tests.py", "exec", dont_inherit=True), scope)
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {str(error)[:300]}\n".encode(errors="replace"))
        os._exit(1)
    os._exit(0)


def _number(value: Any) -> int:
    if type(value) is not Remote:
        raise TypeError(f"a {type(value).__name__} cannot be handed to the program")
    return value._number


def _error(name: str, text: str) -> Exception:
    """Returns the program's exception if its type is built in, which tests can catch; else RuntimeError."""
    kind = getattr(__builtins__, name, None)
    if isinstance(kind, type) and issubclass(kind, Exception):
        return kind(text)
    return RuntimeError(f"{name}: {text}")


def _names(code: str) -> list[str]:
    """Returns the names that the tests read, without Python's built-ins: a program cannot replace `abs`."""
    import ast
    import builtins

    name_nodes = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name))
    read = {node.id for node in name_nodes if isinstance(node.ctx, ast.Load)}
    return sorted(read - set(dir(builtins)))
