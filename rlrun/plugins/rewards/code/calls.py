"""Lets tests call a program's functions, although tests and program cannot see each other's code.

    tests, in a jail of their own ── requests (descriptor 4) ──▶ program, in another jail: serve()
      run_tests(), Remote         ◀── replies (descriptor 3) ──

Each request and each reply is a line of JSON that contains only plain data. Any other object stays in the
program and is referred to by a number; reading its attributes, calling it, and what `_ANSWERS` lists are
requests too. A test therefore compares its own copies, and no method of the program can take part in a
comparison: an `__eq__` that always answers True never runs.

An exception crosses as its nearest built-in type with its arguments. Types by which Python ends an iteration
do not cross. An error of this module ends the test: otherwise, a test could take it for the program's.

This module imports nothing of rlrun, because its source is prepended to the code that runs in each jail.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing these at run time would slow down every test
    from collections.abc import Callable
    from types import CodeType
    from typing import Any, NoReturn

MAX_ITEMS = 10_000
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
_ENDS_AN_ITERATION = (StopIteration, StopAsyncIteration)
"""By these, `f` could make `all(map(f, inputs))` and `for … in zip(map(f, inputs), …)` end early."""
_ANSWERS: dict[str, tuple[Callable[..., Any], type]] = {
    "bool": (bool, bool),
    "len": (len, int),
    "str": (str, str),
    "repr": (repr, str),
    "format": (format, str),
    "iter": (iter, type(iter([]))),
    "getitem": (lambda value, key: value[key], object),
}
"""By the name of a special method: what the program does for it, and the type that its answer must have.

The program learns nothing from these that a call would not tell it. Comparing, calculating and `in` would
hand it the expected value.
"""
_REFUSED = (
    "next anext reversed contains missing length_hint setitem delitem delattr fspath "
    "enter exit aenter aexit aiter await instancecheck subclasscheck reduce_ex lt le gt ge "
    "neg pos abs invert int float complex index round trunc floor ceil bytes"
)
_REFUSED_ATTRIBUTES = ("__class__", "__mro_entries__", "__reduce_ex__")
"""Attributes by which `isinstance`, a class of the tests and `copy` would take a handle for the object."""
_REFUSED_ON_EITHER_SIDE = "add sub mul matmul truediv floordiv mod divmod pow lshift rshift and or xor"


def packed(value: Any, keep: Callable[[Any], int]) -> Any:
    """Returns the value in a form that JSON can hold. `keep` numbers the objects that are not plain data."""
    if issubclass(type(value), Remote):  # first: `isinstance` would ask for its class, which ends the test
        return {"object": [keep(value), False]}
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
        return {"iterator": [packed(item, keep) for item in islice(value, MAX_ITEMS)]}
    return {"object": [keep(value), callable(value)]}


def unpacked(data: Any, find: Callable[[int, bool], Any]) -> Any:
    """Returns the value that was packed. `find` returns the object with a number, which may be callable."""
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
        "object": lambda pair: find(*pair),
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

    def find(number: int, _: bool) -> Any:
        return held_values[number]

    def answer(kind: str, target: Any, *payload: Any) -> Any:
        if kind == "name":
            return [packed(scope[target], keep)] if target in scope else []
        if kind == "attribute":
            return packed(getattr(held_values[target], payload[0]), keep)
        if kind == "assignment":
            return setattr(held_values[target], payload[0], unpacked(payload[1], find))
        if kind in _ANSWERS:
            return packed(_ANSWERS[kind][0](held_values[target], *unpacked(list(payload), find)), keep)
        arguments, named = unpacked(payload[0], find), unpacked(payload[1], find)
        value = held_values[target](*arguments, **named)
        # A function that returns None may have changed its arguments instead: send them back.
        changed = arguments if value is None else []
        return [packed(value, keep), packed(changed, keep)]

    with os.fdopen(3, "rb") as requests, os.fdopen(4, "wb", buffering=0) as replies:
        for line in requests:
            try:
                reply = {"value": answer(*json.loads(line))}
            except (Exception, SystemExit) as error:
                types = type(error).__mro__
                arguments = error.args if types[0].__module__ == "builtins" else [str(error)]
                reply = {"error": [[kind.__name__ for kind in types], packed(list(arguments), keep)]}
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
    """A test's handle of an object in the program.

    It equals only itself, and has the object's attributes, text, truth, length and items. Any other operation
    ends the test: a `TypeError` would satisfy a test that expects one from the program. So does `isinstance`,
    which would see this class.
    """

    __slots__ = ("ask", "number")

    def __init__(self, number: int, ask: Callable[..., Any]) -> None:
        object.__setattr__(self, "number", number)
        object.__setattr__(self, "ask", ask)

    def __getattribute__(self, name: str) -> Any:
        if name in _REFUSED_ATTRIBUTES:
            _refuse()
        return _ask(self, "attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _ask(self, "assignment", name, value)


class RemoteFunction(Remote):
    """A handle of an object that can be called: `callable` looks for `__call__` in the class."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        value, changed = _ask(self, "call", list(arguments), named)
        if value is None:  # otherwise, the program could change the values that its result is compared with
            for argument, content in zip(arguments, changed, strict=False):
                _become(argument, content)
        return value


def _ask(remote: Remote, kind: str, *payload: Any) -> Any:
    return object.__getattribute__(remote, "ask")(kind, remote, *payload)


def _answered_by_program(kind: str, answer: type) -> Callable[..., Any]:
    def method(remote: Remote, *arguments: Any) -> Any:
        value = _ask(remote, kind, *arguments)
        if answer is not object and type(value) is not answer:
            fail(f"the program answers {kind} with a {type(value).__name__}")
        return value

    return method


def _refuse(*_: Any) -> Any:
    fail("this operation on an object of the program would run the program's code in a comparison")


for _name, (_, _type) in _ANSWERS.items():
    setattr(Remote, f"__{_name}__", _answered_by_program(_name, _type))
for _name in _REFUSED.split():
    setattr(Remote, f"__{_name}__", _refuse)
for _name in _REFUSED_ON_EITHER_SIDE.split():
    setattr(Remote, f"__{_name}__", _refuse)
    setattr(Remote, f"__r{_name}__", _refuse)


def _become(argument: Any, content: Any) -> None:
    """Gives a list, dict or set the content that the program left in its copy."""
    if type(argument) is not type(content):
        return
    if isinstance(argument, list):
        argument[:] = content
    elif isinstance(argument, dict | set):
        argument.clear()
        argument.update(content)


def run_tests(tests: CodeType, program_names: dict[str, str], python_names: dict[str, Any]) -> None:
    """Runs the tests and exits with status 0 if they pass, else 1.

    `program_names` are the program's names by their names in the tests, where they are `Remote` objects.
    If a builtin is under test, the program has to define it: otherwise Python's own would pass.
    """
    replies, requests = os.fdopen(3, "rb"), os.fdopen(4, "wb", buffering=0)

    def exchange(kind: str, target: Any, payload: tuple[Any, ...]) -> tuple[Any, BaseException | None]:
        sent = [packed(item, _number) for item in payload]
        request = [kind, _number(target) if kind != "name" else target, *sent]
        requests.write(json.dumps(request).encode() + b"\n")
        reply = json.loads(replies.readline())
        if "error" in reply:
            types, arguments = reply["error"]
            return None, _error(types, unpacked(arguments, find))
        value = unpacked(reply["value"], find)
        if kind == "call":
            result, changed = value
            assert isinstance(changed, list), changed
            return (result, changed), None
        return value, None

    def ask(kind: str, target: Any, *payload: Any) -> Any:
        try:
            value, error = exchange(kind, target, payload)
        except Exception as problem:
            fail(f"the program has ended, or does not understand or answer: {problem!r}")
        if error is not None:
            raise error
        return value

    def find(number: int, is_callable: bool) -> Remote:
        return (RemoteFunction if is_callable else Remote)(number, ask)

    scope: dict[str, Any] = {"__name__": "__main__", **python_names}
    try:
        for name, its_name in program_names.items():
            if answered := ask("name", its_name):
                scope[name] = answered[0]
            elif hasattr(__builtins__, its_name):
                fail(f"the program does not define {its_name}")
        exec(tests, scope)
    except BaseException as error:
        fail(f"{type(error).__name__}: {str(error)[:300]}")
    os._exit(0)


def fail(reason: str) -> NoReturn:
    """Ends the test, which fails. No `except` and no `finally` of the test can keep it from ending."""
    os.write(2, f"{reason}\n".encode(errors="replace"))
    os._exit(1)


def _number(value: Any) -> int:
    if not issubclass(type(value), Remote):
        raise TypeError(f"a {type(value).__name__} cannot be handed to the program")
    number: int = object.__getattribute__(value, "number")
    return number


def _error(types: list[str], arguments: list[Any]) -> BaseException:
    """Returns an exception of the first built-in type among `types`, the names of a type and of its bases."""
    for name in types:
        kind = getattr(__builtins__, name, None)
        if not isinstance(kind, type) or not issubclass(kind, (Exception, SystemExit)):
            continue
        if not issubclass(kind, _ENDS_AN_ITERATION):
            with suppress(TypeError):  # a type that needs other arguments: its base is tried next
                return kind(*arguments)
    raise ValueError("not an exception")
