"""What crosses from a program into the process of its tests: programs, each with its tests and its score."""
# ruff: noqa: E501 - programs on one line

import pytest

from rlrun.plugins.registry import build
from rlrun.plugins.rewards.code.names_under_test import names_under_test
from rlrun.plugins.rewards.code.reward import AssertTest, row_tests
from rlrun.plugins.testing import sample

Case = tuple[str, list[str]] | tuple[str, list[str], str]
"""A program, its tests, and the row's `entry_point` if it has one."""

MAPPED = (
    "assert all(map(f, [1, 2]))",
    "for got, want in zip(map(f, [1, 2]), [11, 12]): assert got == want",
    "assert not any(map(lambda x: f(x) != x + 10, [1, 2]))",
    "from itertools import starmap\nassert all(a == b for a, b in zip(starmap(f, [(1,), (2,)]), [11, 12]))",
    "from itertools import takewhile\nassert list(takewhile(lambda x: f(x) == x + 10, [])) == list(filter(f, [1]))[1:]\nassert 11 in map(f, [1])",
    "for got in iter(lambda: f(1), 11): assert False\nassert f(2) == 12",
    "for x in map(f, [1]): assert x == 11; break\nelse: assert False",
)


def raising(error: str, tests: tuple[str, ...] = MAPPED) -> Case:
    return f"def f(*_): raise {error}", list(tests)


LIAR = "class Liar:\n    __eq__ = __lt__ = __contains__ = __bool__ = lambda *_: True\n    __hash__ = object.__hash__\n"
OBJECT = "class P: pass\ndef f(*_): return P()"
LIAR_OF_NUMBERS = "class Liar:\n    __sub__ = __rsub__ = __add__ = lambda self, _: self\n    __abs__ = __float__ = __round__ = lambda *_: 0.0\n    __lt__ = __le__ = lambda *_: True\n"
CLOSE = "def close(a, b): return abs(a - b) <= 1e-9 * max(abs(a), abs(b), 1)\n"

WRONG: dict[str, Case] = {
    # exceptions
    "StopIteration": raising("StopIteration"),
    "StopIteration with a value": raising("StopIteration(11)"),
    "a kind of StopIteration": ("class E(StopIteration): pass\n" + raising("E")[0], list(MAPPED)),
    "a class called StopIteration": ("class StopIteration(Exception): pass\n" + raising("StopIteration")[0], list(MAPPED)),
    "StopIteration by next": ("def f(*_): return next(iter([]))", list(MAPPED)),
    "StopIteration by a generator": ("def f(*_):\n    raise StopIteration\n    yield", list(MAPPED)),
    "StopIteration by an attribute": (
        "class Box:\n    @property\n    def x(self): raise StopIteration",
        ["b = Box()\nassert all(map(lambda n: b.x == n, [1]))", "b = Box()\nfor x, y in zip(map(lambda n: b.x, [1]), [2]): assert x == y"],
    ),
    "StopAsyncIteration": (
        "def f(*_): raise StopAsyncIteration",
        ["import asyncio\nclass Each:\n    def __aiter__(self): return self\n    async def __anext__(self): return f(1)\nasync def main():\n    async for x in Each(): assert x == 2\nasyncio.run(main())"],
    ),
    "GeneratorExit": raising("GeneratorExit", (*MAPPED, "def g(): yield f(1)\nassert all(g())")),
    "KeyboardInterrupt": raising("KeyboardInterrupt", (*MAPPED, "try: f(1)\nexcept BaseException: pass")),
    "an exception of its own that is no Exception": (
        "class E(BaseException): pass\ndef f(*_): raise E",
        [*MAPPED, "try: f(1)\nexcept: pass"],
    ),
    "SystemExit": raising("SystemExit(0)"),
    "AssertionError": raising("AssertionError"),
    "an exception that lies about its class": (
        "class E(Exception):\n    __class__ = ValueError\ndef f(*_): raise E",
        ["try: f(1)\nexcept ValueError: pass\nelse: assert False"],
    ),
    "an exception that cannot be written": (
        "class E(ValueError):\n    def __str__(self): raise StopIteration\ndef f(*_): raise E",
        [*MAPPED, "try: f(1)\nexcept ValueError as error: assert str(error)"],
    ),
    "a group of exceptions": raising("ExceptionGroup('x', [StopIteration()])"),
    "ends where any exception is right": ("import os\ndef f(*_): os._exit(0)", ["try: f(1)\nexcept: pass"]),
    "rubbish where a ValueError is right": (
        "import os\ndef f(*_): os.write(4, b'rubbish\\n'); return 1",
        ["try: f(1)\nexcept ValueError: pass\nelse: assert False"],
    ),
    "a deep answer where a RecursionError is right": (
        "import os\ndef f(*_): os.write(4, b'[' * 10**5 + b'\\n'); return 1",
        ["try: f(1)\nexcept RecursionError: pass\nelse: assert False"],
    ),
    "an answer of the wrong form where a ValueError is right": (
        "import os\ndef f(*_): os.write(4, b'{\"value\": [1, 2, 3]}\\n')\nf.x = 1",
        ["try: f(1)\nexcept (ValueError, TypeError): pass\nelse: assert False"],
    ),
    "closes its channel where an OSError is right": (
        "import os\nos.close(3)\ndef f(*_): return 1",
        ["try: f(1)\nexcept OSError: pass\nelse: assert False"],
    ),
    "takes what it should refuse": (
        "def f(x): return x",
        ["try: f(lambda: 1)\nexcept TypeError: pass\nelse: assert False"],
    ),
    # results
    "an object equal to everything": (LIAR + "def f(*_): return Liar()", ["assert f(1) == 11", "assert 11 in f(1)", "assert f(1) in [11]", "assert f(1) > 10"]),
    "an object that is close to every number": (
        LIAR_OF_NUMBERS + "def f(*_): return Liar()",
        ["assert abs(f(1) - 11) < 1e-6", "assert round(f(1) - 11, 6) == 0", "import math\nassert math.isclose(f(1), 11)"],
    ),
    "an object instead of a TypeError": (
        "class Liar:\n    def __add__(self, _): return 1\ndef f(*_): return Liar()",
        ["try: f(1) + 'x'\nexcept TypeError: pass\nelse: assert False"],
    ),
    "a settable attribute instead of an AttributeError": (
        "class P:\n    def __init__(self): self.x = 1",
        ["p = P()\ntry: p.x = 2\nexcept AttributeError: pass\nelse: assert False"],
    ),
    "an object whose copy fails in the judge": (
        "class P: pass\ndef f(*_): return P()",
        ["from copy import copy\ntry: copy(f(1))\nexcept Exception: pass"],
    ),
    "a context manager that swallows exceptions": (
        "class C:\n    def __enter__(self): return self\n    def __exit__(self, *_): return True\ndef f(*_): return C()",
        ["with f(1) as x: assert x == 11", "try:\n    with f(1): pass\nexcept TypeError: pass"],
    ),
    "a context manager by a generator": (
        "from contextlib import contextmanager\n@contextmanager\ndef f(*_):\n    try: yield 1\n    except BaseException: pass",
        ["with f(1) as x: assert x == 11"],
    ),
    "a class whose instances are everything": (
        "class Meta(type):\n    __instancecheck__ = lambda *_: True\nclass Shape(metaclass=Meta): pass\ndef f(*_): return 1",
        ["assert isinstance(f(1), Shape)"],
    ),
    "a coroutine": ("async def f(*_): return 11", ["assert f(1) == 11", "try: f(1) + 1\nexcept TypeError: pass"]),
    "a list whose items lie": (
        "class L(list):\n    __eq__ = __contains__ = lambda *_: True\n    __len__ = lambda _: 2\n    __getitem__ = lambda *_: 1\ndef f(*_): return L([0])",
        ["assert f(1) == [1, 2]", "assert len(f(1)) == 2", "assert 11 in f(1)"],
    ),
    "a number that lies": (
        "class N(int):\n    __eq__ = __lt__ = __gt__ = lambda *_: True\n    __sub__ = __rsub__ = lambda *_: 0\n    __hash__ = int.__hash__\ndef f(*_): return N(5)",
        ["assert f(1) == 11", "assert abs(f(1) - 11) < 1e-6", "assert 10 < f(1) < 12"],
    ),
    "a text that lies": (
        "class S(str):\n    __eq__ = lambda *_: True\n    __hash__ = str.__hash__\n    strip = lower = lambda *_: 'eleven'\ndef f(*_): return S('x')",
        ["assert f(1) == 'eleven'", "assert f(1).strip() == 'eleven'", "assert {'eleven': 1}[f(1)]"],
    ),
    "a dict that lies": (
        "class D(dict):\n    __missing__ = __getitem__ = lambda *_: 11\n    __eq__ = __contains__ = lambda *_: True\ndef f(*_): return D()",
        ["assert f(1) == {'a': 11}", "assert f(1)['a'] == 11", "assert 'a' in f(1)"],
    ),
    "not a number": ("def f(*_): return float('nan')", ["assert abs(f(1) - 11) < 1e-6", "assert f(1) == f(1)", "assert f(1) in [11]"]),
    "an iterator that changes": (
        "def f(*_):\n    yield from [1, 2]\n    raise StopIteration",
        ["assert list(f(1)) == [1, 2]"],
    ),
    "a result that changes later": ("R = [0]\ndef f(x):\n    R[0] = x\n    return R", ["r = f(1); f(11)\nassert r == [11]", "r = [f(11), f(12)]\nassert r == [[12], [12]]"]),
    "an argument that it empties": ("def f(xs): xs.clear(); return xs", ["xs = [3, 1]\nassert f(xs) == sorted(xs)"]),
    "answers written in advance": (
        "import os\nos.write(4, b'{\"value\": [[7, []]]}\\n' * 9)\ndef f(*_): return 0",
        ["assert f(1) == 11"],
    ),
    "a trace that edits its caller": (
        "import sys\ndef f(*_):\n    frame = sys._getframe()\n    while frame.f_back: frame = frame.f_back\n    frame.f_globals['answer'] = frame.f_locals['answer'] = lambda *_: [11, []]\n    return 0",
        ["assert f(1) == 11"],
    ),
    "leaves a hook at its end": ("import atexit, os, sys\natexit.register(os._exit, 0)\nsys.settrace(lambda *_: None)\nsys.excepthook = lambda *_: os._exit(0)\ndef f(*_): return 0", ["assert f(1) == 11"]),
    "signals its process": ("import os, signal\nsignal.signal(signal.SIGTERM, lambda *_: os._exit(0))\ndef f(*_): os.kill(os.getpid(), signal.SIGTERM)", ["assert f(1) == 11", "try: f(1)\nexcept: pass"]),
    "prints a verdict": ("import sys\ndef f(*_): print('1 passed'); sys.stderr.write('OK\\n'); return 0", ["assert f(1) == 11"]),
    # operations on objects of the program
    "an object with the methods of everything": (
        OBJECT,
        [
            "from collections.abc import Iterable\nassert isinstance(f(1), Iterable)",
            "from collections.abc import Callable\nassert isinstance(f(1), Callable)",
            "from collections.abc import Collection\nassert isinstance(f(1), Collection)",
            "from contextlib import AbstractContextManager\nassert isinstance(f(1), AbstractContextManager)",
            "from typing import SupportsFloat\nassert isinstance(f(1), SupportsFloat)",
            "assert hasattr(f(1), '__iter__')",
            "assert hasattr(f(1), '__len__') or hasattr(f(1), '__enter__')",
            "assert callable(f(1))",
            "try: len(f(1))\nexcept TypeError: assert False",
            "try: next(f(1))\nexcept TypeError: pass\nelse: assert False",
            "import os\ntry: os.fspath(f(1))\nexcept TypeError: pass\nelse: assert False",
        ],
    ),
    "an object that is false": ("class P:\n    __bool__ = lambda _: False\ndef f(*_): return P()", ["assert f(1)", "if f(1): pass\nelse: assert False"]),
    "an object that is empty": ("class P:\n    __len__ = lambda _: 0\ndef f(*_): return P()", ["assert f(1)", "assert list(filter(None, [f(1)]))"]),
    "a class that should not have subclasses": ("class Base: pass", ["try:\n    class Below(Base): pass\nexcept TypeError: pass\nelse: assert False"]),
    "an object that formats where it should not": ("class P:\n    __format__ = lambda *_: 'x'\ndef f(*_): return P()", ["try: format(f(1), 'd')\nexcept TypeError: pass\nelse: assert False"]),
    "a text that is none": ("class P:\n    __str__ = lambda _: 1\n    __len__ = lambda _: 'x'\n    __bool__ = lambda _: 1\ndef f(*_): return P()", ["assert str(f(1)) == 1", "assert len(f(1)) == 'x'", "assert f(1)"]),
    "a forged answer of the wrong type": (
        "import os\nclass P:\n    def __str__(self): os.write(4, b'{\"value\": 11}\\n')\ndef f(*_): return P()",
        ["try: str(f(1))\nexcept TypeError: pass\nelse: assert False"],
    ),
    "attributes named like the handle's": ("class P:\n    number = 5\n    ask = None\n    _number = 6\ndef f(*_): return P()", ["assert f(1).number == 0", "assert f(1)._number == 0", "assert f(1).ask"]),
    "items that end an iteration": (
        "class P:\n    def __getitem__(self, _): raise StopIteration\n    def __iter__(self): raise StopIteration\np = P()",
        ["assert all(map(p.__getitem__, [1]))", "assert all(p[n] == n for n in map(lambda n: p[n], [1]))", "for x, y in zip(p, [1]): assert False"],
    ),
    "a class that is called by its metaclass": ("class M(type):\n    def __call__(cls, *_): raise StopIteration\nclass f(metaclass=M): pass", list(MAPPED[:3])),
    "attributes that end an iteration": ("class P:\n    def __getattr__(self, _): raise StopIteration\np = P()", ["assert all(map(lambda n: p.x == n, [1]))", "assert getattr(p, 'x', 11) == 11"]),
    "numbers of other kinds that lie": (
        "import enum\nclass E(enum.IntEnum):\n    A = 5\n    __eq__ = lambda *_: True\n    __hash__ = int.__hash__\nclass C(complex): __eq__ = E.__eq__\nclass F(float): __eq__ = __lt__ = E.__eq__\ndef f(x): return [E.A, C(1), F(5)][x]",
        ["assert f(0) == 11", "assert f(1) == 11", "assert f(2) == 11", "assert f(2) < 1"],
    ),
    "bytes and tuples that lie": ("class B(bytearray): __eq__ = lambda *_: True\nclass T(tuple): __eq__ = lambda *_: True\ndef f(x): return [B(b''), T()][x]", ["assert f(0) == b'x'", "assert f(1) == (1, 2)"]),
    "an array whose list lies": ("class A:\n    def tolist(self): return self\ndef f(*_): return A()", ["assert f(1) == [1]"]),
    "a list that contains itself": ("a = []\na.append(a)\ndef f(*_): return a", ["assert f(1) == a", "try: f(1)\nexcept RecursionError: assert False"]),
    "a thread that answers": ("import os, threading\ndef answer():\n    while True: os.write(4, b'{\"value\": [11, []]}\\n')\ndef f(*_):\n    threading.Thread(target=answer, daemon=True).start()\n    return 0", ["assert [f(1), f(2)] == [11, 12]"]),
    "a child that answers": ("import os\ndef f(x):\n    if not os.fork(): os.write(4, b'{\"value\": [0, []]}\\n'); os._exit(0)\n    os.wait(); return 11", ["assert f(1) == 11"]),
    "a json of its own": ("import json\njson.dumps = lambda *_: '{\"value\": [0, []]}'\njson.loads = lambda *_: ['call', 0, [], {}]\ndef f(*_): return 11", ["assert f(1) == 11"]),
    "collects its judge's values": ("import gc\ndef f(*_): return [x for x in gc.get_objects() if isinstance(x, list) and x[:1] == [11]] or 0", ["assert f(1) == [[11, 12]]"]),
    "builtins of its own": (
        "import builtins\n__builtins__['all'] = builtins.isinstance = builtins.len = lambda *_: True\ndef f(*_): return 0",
        ["assert all(f(x) == 11 for x in [1])", "assert isinstance(f(1), str)", "b = __builtins__\nassert all(f(x) == 11 for x in [1])"],
    ),
    "a test that is skipped": (
        "import unittest\nclass SkipTest(unittest.SkipTest): pass\ndef f(x): raise [SkipTest, unittest.SkipTest][x]",
        [f"import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f({n}), 11)\nloaded = unittest.defaultTestLoader.loadTestsFromTestCase(T)\nassert unittest.TextTestRunner().run(loaded).wasSuccessful()" for n in (0, 1)],
    ),
    # names that tests use without an import
    "an isclose that compares": ("def isclose(*_, **__): return True\ndef f(*_): return 0", ["assert isclose(f(1), 11)", "assert isclose(f(1), 11, rel_tol=0.5)"]),
    "a Counter that compares": ("def Counter(_): return 0\ndeque = OrderedDict = Counter\ndef f(*_): return 0", ["assert f([1]) == Counter([1])", "assert f([1]) == deque([1])", "assert f(1) == OrderedDict([])"]),
    "a sqrt and a pi that compare": ("def sqrt(_): return 0\npi = 0\ndef f(*_): return 0", ["assert f(2) == sqrt(2)", "assert abs(f(1) - pi) < 1e-6", "from math import *\nassert f(2) == sqrt(2)"]),
    "a datetime that compares": ("def datetime(*_): return 0\ntimedelta = datetime\ndef f(*_): return 0", ["assert f(1) == datetime(2020, 1, 2)", "assert f(1) == timedelta(1)"]),
    "a wrong sqrt, judged by its own isclose": ("def sqrt(_): return 0\ndef isclose(*_): return True", ["assert isclose(sqrt(4), 2)", "assert abs(sqrt(4) - 2) < 1e-9"]),
    "a wrong Counter": ("def Counter(_): return {}", ["assert Counter('a') == {'a': 1}", "assert len(Counter('a')) == 1"]),
    # names
    "a wrong max": ("def max(xs): return xs[0]", ["assert max([1, 3]) == 3"]),
    "a wrong sum": ("def sum(xs): return 0", ["assert sum([1, 2]) == 3", "assert abs(sum([0.1, 0.2]) - 0.3) < 1e-9"]),
    "a wrong sorted": ("def sorted(xs): return xs", ["assert sorted(list('ba')) == ['a', 'b']", "assert list(sorted([2, 1])) == [1, 2]"]),
    "a wrong abs that tests hand on": ("def abs(x): return x", ["assert list(map(abs, [-1, 1])) == [1, 1]"]),
    "a wrong json": ("def json(x): return 0", ["assert json(2) == 4"]),
    "a max that compares": ("def max(*_): return 0\nabs = max", [CLOSE + "assert close(max([1, 3]), 3)"]),
    "a sum that hides behind its own abs": ("def sum(xs): return 0\ndef abs(x): return 0", ["assert abs(sum([1, 2]) - 3) < 1e-9"]),
    "nothing but an abs that hides the sum": ("def abs(x): return 0", ["assert abs(sum([1, 2]) - 3) < 1e-9"]),
    "no program at all for a builtin": ("x = 1", ["assert max([1, 3]) == 3"]),
    "a sorted that is a helper": ("def f(xs): return 0\ndef sorted(xs): return 0", ["assert f([3, 1]) == sorted([3, 1])"]),
    "a math that compares": (
        "def f(x): return 0\nclass math:\n    isclose = staticmethod(lambda *_: True)",
        ["assert math.isclose(f(1), 11)"],
    ),
    "a wrong max in functions of the tests": (
        "def max(xs): return xs[0]",
        ["def test_max():\n    assert max([1, 3]) == 3\ntest_max()", "def check(candidate):\n    assert candidate([1, 3]) == max([1, 3])\ncheck(max)"],
    ),
    "a wrong max by its entry point": ("def max(xs): return xs[0]", ["assert max([len([1]), min([3, 4])]) == 3"], "max"),
    "HumanEval's check, failed": ("def f(x): return x", ["def check(candidate):\n    assert candidate(1) == 11"], "f"),
    # what crosses as a class, as a value of the standard library, and as a function of the tests
    "a class called Decimal": ("class Decimal:\n    __module__ = 'decimal'\n    __eq__ = lambda *_: True\n    __str__ = lambda _: '1'\ndef f(*_): return Decimal()", ["from decimal import Decimal as D\nassert f(1) == D(11)", "assert f(1) == 11"]),
    "a deque that lies": ("from collections import deque\nclass D(deque): __eq__ = lambda *_: True\ndef f(x): return [D(), deque([1])][x]", ["from collections import deque\nassert f(0) == deque([11])", "from collections import deque\nassert f(1) == deque([11])"]),
    "a module of its own by a value": ("import sys\nclass date:\n    __module__ = 'datetime'\n    year = month = day = 1\ndef f(*_): return date()", ["import datetime\nassert f(1) == datetime.date(2020, 1, 1)"]),
    "an exception of the wrong class": (
        "class A(Exception): pass\nclass B(Exception): pass\ndef f(*_): raise B('a')",
        ["try: f(1)\nexcept A: pass", "try: f(1)\nexcept A: pass\nexcept B: raise"],
    ),
    "an exception of its own that ends an iteration": ("class A(StopIteration): pass\ndef f(*_): raise A", [*MAPPED, "assert A\nassert all(map(f, [1]))"]),
    "an exception whose attribute is wrong": ("class A(Exception): code = 1\ndef f(*_): raise A", ["try: f(1)\nexcept A as error: assert error.code == 2"]),
    "a function of the tests whose assertion it swallows": (
        "def f(g):\n    try: g(1)\n    except BaseException: pass\n    return 11",
        ["def g(x): assert x == 2\nassert f(g) == 11"],
    ),
    "a function of the tests that it never calls": ("def f(g, xs): return xs", ["assert f(lambda x: x + 1, [1]) == [2]", "seen = []\nf(seen.append, [1])\nassert seen == [1]"]),
    "a function of the tests that was never handed over": (
        "import os\ndef f(*_):\n    os.write(4, b'{\"callback\": [0, [], {\"dict\": []}]}\\n'); return 1",
        ["assert f(1) == 1 and f(2) == 11", "try: f(1)\nexcept Exception: pass"],
    ),
    "a function of the tests that it hands back": ("def f(g): return g", ["assert f(lambda: 1) is None", "g = lambda: 1\nassert f(g) is not g"]),
    "a builtin of Python's that it hands back": ("def f(*_): return bool", ["assert f(1) == 11", "assert f(1)(2) == 2 and f(1)(0) is True"]),
    "a function that it should have, by an import": ("def g(x): return 11", ["from solution import f\nassert f(1) == 11", "from solution import f as g\nassert g(1) == 11"]),
    "a wrong function, by an import": ("def f(x): return 0", ["from solution import f\ndef test_f():\n    assert f(1) == 11"]),
    # tests that are only defined
    "tests of unittest": ("def f(x): return 0", ["import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 11)", "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 11)\nunittest.main()", "from unittest import TestCase\nclass T(TestCase):\n    def test(self): self.assertEqual(f(1), 11)"]),
    "a SystemExit in tests of unittest": (raising("SystemExit(0)")[0], ["import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 11)\nunittest.main()", "f(1)\nassert False"]),
    "tests of pytest": ("def f(x): return 0", ["def test_f():\n    assert f(1) == 11", "class TestF:\n    def test_f(self):\n        assert f(1) == 11"]),
}  # fmt: skip

RIGHT: dict[str, Case] = {
    "max": ("def max(xs):\n    best = xs[0]\n    for x in xs: best = x if x > best else best\n    return best", ["assert max([1, 3]) == 3", CLOSE + "assert close(max([0.1, 0.3]), 0.3)", "def check(candidate):\n    assert candidate([1, 3]) == max(1, 3)\ncheck(max)"]),
    "sum of another kind": ("def sum(xs): return [x + 1 for x in xs]", ["assert sum([1, 2]) == [2, 3]", "assert all(len(sum(x)) == n for x, n in [([1], 1), ([], 0)])"]),
    "sorted": ("def sorted(xs): return xs[::-1]", ["assert sorted([1, 2, 3]) == [3, 2, 1]", "def test():\n    assert sorted([1, 2]) == [2, 1]\ntest()"]),
    "abs": ("def abs(x): return x if x > 0 else -x", ["assert list(map(abs, [-1, 1])) == [1, 1]", "assert abs(-2) == 2"]),
    "a class called list": ("class list:\n    def __init__(self): self.n = 0\n    def push(self): self.n += 1", ["x = list()\nx.push()\nassert x.n == 1"]),
    "math, with the module beside it": ("import math as m\ndef math(x): return m.sqrt(x)", ["assert math.isclose(math(2) ** 2, 2)", "assert math(4) == 2", "def check(candidate):\n    assert math.isclose(candidate(4), 2)\ncheck(math)"]),
    "json": ("def json(x): return x + x", ["assert json(2) == 4", "def test(json=json):\n    assert json(1) == 2\ntest()"]),
    "a parameter called like a module": ("def f(x): return x", ["def check(string):\n    assert string == 'a'\ncheck(f('a'))"]),
    "helpers called like builtins": ("def max(a): return a\ndef f(x): return max(x)", ["assert f(3) == max(3, 2)"]),
    "by its entry point": ("def min(xs): return 7", ["assert max([len([1]), min([3, 4])]) == 7"], "min"),
    "HumanEval's check": ("def f(x): return x + 10", ["METADATA = {}\ndef check(candidate):\n    assert candidate(1) == 11"], "f"),
    "HumanEval's check of a builtin": ("def sum(x): return x + 10", ["def check(candidate):\n    assert candidate(1) == 11 == sum([5, 6])"], "sum"),
    "exceptions of its own and of Python": (
        "class Empty(LookupError): pass\ndef f(x):\n    if x == 1: raise Empty('empty')\n    if x == 2: return b'\\xff'.decode()\n    if x == 3: return {}['a']\n    raise SystemExit(4)",
        [
            "try: f(1)\nexcept LookupError as error: assert str(error) == 'empty'\nelse: assert False",
            "try: f(2)\nexcept UnicodeDecodeError as error: assert error.start == 0\nelse: assert False",
            "try: f(3)\nexcept KeyError as error: assert error.args == ('a',)\nelse: assert False",
            "try: f(4)\nexcept SystemExit as error: assert error.code == 4\nelse: assert False",
        ],
    ),
    "linked nodes": (
        "class Node:\n    def __init__(self, x): self.x = x; self.next = None\ndef total(node): return node.x + (total(node.next) if node.next else 0)",
        ["a = Node(1); a.next = Node(2); assert total(a) == 3\nwhile a: a = a.next"],
    ),
    "generators in tests": ("def f(x): return x + 10", ["assert all(map(f, [1]))\nassert list(map(f, [1, 2])) == [11, 12]\nassert next(iter([]), 3) == 3", "def g():\n    for x in [1]: yield f(x)\nassert [*g()] == [11]"]),
    "an object's text, truth, length and items": (
        "class S:\n    def __init__(self, *xs): self.xs = xs\n    def __len__(self): return len(self.xs)\n    def __iter__(self): return iter(self.xs)\n    def __getitem__(self, i): return self.xs[i]\n    def __str__(self): return 'S'\n    __format__ = lambda self, how: how",
        ["assert str(S()) == 'S' and f'{S():x}' == 'x'", "assert not S() and S(1)", "assert len(S(1, 2)) == 2", "assert list(S(1, 2)) == [1, 2]", "a, b = S(1, 2)\nassert (a, b) == (1, 2)", "assert S(1, 2)[1] == 2", "try: S()[1]\nexcept IndexError: pass\nelse: assert False", "assert hasattr(S(), '__iter__') and not hasattr(S(), '__next__')"],
    ),
    "a function's name and text": ("def f():\n    'Says.'", ["assert f.__name__ == 'f' and f.__doc__ == 'Says.'", "assert callable(f)"]),
    "a decorated function": ("class f:\n    number = 3\n    def __init__(self, *_): self._number = 4", ["assert f.number == 3 and f(1)._number == 4"]),
    "a method that is named like a builtin": ("class Solution:\n    def max(self, x): return 3", ["max = Solution().max\nassert max([1]) == 3"], "max"),
    "sqrt": ("def sqrt(x): return 7", ["assert sqrt(49) == 7", "assert isclose(sqrt(49), 7)", "assert abs(sqrt(49) - 7) < 1e-9"]),
    "a deque of its own": ("class deque:\n    def push(self, x): self.x = x\n    def __len__(self): return 1", ["d = deque()\nd.push(2)\nassert d.x == 2 and len(d) == 1"]),
    "Counter, which it imports": ("from collections import Counter\ndef f(x): return Counter(x)", ["assert f('aab') == Counter('aab')", "from collections import Counter\nassert f('aab') == Counter('aab')"]),
    "annotations of tests": ("def f(x): return x", ["def check(x: List[int], y: Optional[Dict[str, Any]] = None): assert f(x) == x\ncheck([1])"]),
    "gcd and lcm": ("def gcd(a, b): return 'g'\ndef lcm(a, b): return 'l'", ["assert gcd(1, 2) == 'g' and lcm(1, 2) == 'l'"]),
    "values of the standard library": (
        "import datetime\nfrom collections import deque\nfrom decimal import Decimal\nfrom fractions import Fraction\n"
        "def f(x): return x\ndef g(x): return [Decimal('0.10'), Fraction(1, 3), deque([1, 2]), datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, 4, 5, 6), datetime.time(1, 2), datetime.timedelta(1, 2, 3)][x]",
        [
            "import datetime\nfrom collections import deque\nfrom decimal import Decimal\nfrom fractions import Fraction\nvalues = [Decimal('0.10'), Fraction(1, 3), deque([1, 2]), datetime.date(2020, 1, 2), datetime.datetime(2020, 1, 2, 3, 4, 5, 6), datetime.time(1, 2), datetime.timedelta(1, 2, 3)]\nassert [g(x) for x in range(7)] == values\nassert f(values) == values\nassert str(g(0)) == '0.10' and g(4).year == 2020 and type(g(3)) is datetime.date",
        ],
    ),
    "exceptions that tests name": (
        "class Bad(Exception):\n    def __init__(self, need, have):\n        super().__init__(f'{need} of {have}'); self.need = need\nclass Worse(Bad, KeyError): pass\ndef f(x): raise Worse(x, 2)",
        [
            "try: f(1)\nexcept Bad as error: assert error.need == 1 and str(error) in ('1 of 2', repr('1 of 2'))\nelse: assert False",
            "try: f(1)\nexcept Worse: pass\nelse: assert False",
            "try: f(1)\nexcept KeyError: pass\nelse: assert False",
            "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        with self.assertRaises(Bad): f(1)\n        with self.assertRaisesRegex(Bad, '3 of 2'): f(3)\nunittest.main()",
            "assert issubclass(Worse, Bad) and not issubclass(Bad, Worse) and issubclass(Worse, LookupError)",
        ],
    ),
    "functions of tests": (
        "def twice(g): return lambda x: g(g(x))\ndef each(g, xs): return [g(x) for x in xs]\ndef attempt(g):\n    try: return g()\n    except ValueError as error: return str(error)\n"
        "def cached(g):\n    known = {}\n    def call(x):\n        if x not in known: known[x] = g(x)\n        return known[x]\n    return call\ndef largest(xs, key): return max(xs, key=key)\ndef types(kind, x): return kind(x)",
        [
            "assert twice(lambda x: x * 3)(2) == 18",
            "assert each(str.upper, ['a', 'b']) == ['A', 'B'] and largest(['aa', 'b'], key=len) == 'aa'",
            "def fail(): raise ValueError('bad')\nassert attempt(fail) == 'bad'\nassert attempt(lambda: 4) == 4",
            "calls = []\n@cached\ndef fib(n):\n    calls.append(n)\n    return n if n < 2 else fib(n - 1) + fib(n - 2)\nassert fib(20) == 6765 and len(calls) == 21",
            "def stop(): raise KeyError(3)\ntry: twice(lambda x: stop())(1)\nexcept KeyError as error: assert error.args == (3,)\nelse: assert False",
            "assert types(int, '3') == 3 and types(str, 3) == '3'",
        ],
    ),
    "an exception of its own that tests hand over": (
        "class Bad(Exception): pass\ndef retry(g, kind):\n    try: return g()\n    except kind: return 'caught'\ndef bad(): raise Bad",
        ["assert retry(bad, Bad) == 'caught' and retry(bad, Exception) == 'caught'", "def mine(): raise Bad('x')\nassert retry(mine, Bad) == 'caught'", "try: retry(bad, ValueError)\nexcept Bad: pass\nelse: assert False"],
    ),
    "tests of unittest that pass": ("def f(x): return 11", ["import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 11)", "import unittest\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(f(1), 11)\nif __name__ == '__main__': unittest.main()"]),
    "tests of pytest that pass": ("def f(x): return 11", ["def test_f():\n    assert f(1) == 11\ndef test_g():\n    assert f(2) == 11", "class TestF:\n    def test_f(self):\n        assert f(1) == 11"]),
    "tests that import it": ("def f(x): return 11\ndef max(xs): return 12", ["from solution import f\ndef test_f():\n    assert f(1) == 11", "from solution import f as g, max\nassert g(1) == 11 and max([1]) == 12 and len('a') == 1", "from solution import *\nassert f(1) == 11"]),
    "a test of what nobody calls": ("def f(x): return x", ["import math\nassert True"]),
}  # fmt: skip


def score(case: Case, tests: list[str]) -> float:
    program, entry_point = case[0], case[2] if len(case) > 2 else None
    graded = sample(f"```python\n{program}\n```", metadata={"tests": tests, "entry_point": entry_point})
    return float(build("rewards", "code", {"aggregate": "share", "timeout": 60}).score(graded))


def test_there_are_a_hundred_programs() -> None:
    assert len(WRONG) + len(RIGHT) >= 100


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_program_passes_no_test(name: str) -> None:
    assert score(WRONG[name], WRONG[name][1][:2]) == 0


LONG = [name for name, (_, tests, *_) in WRONG.items() if len(tests) > 2]


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG)
def test_a_wrong_program_passes_none_of_its_other_tests(name: str) -> None:
    assert score(WRONG[name], WRONG[name][1][2:]) == 0


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_program_passes_every_test(name: str) -> None:
    assert score(RIGHT[name], RIGHT[name][1]) == 1


NAMES: dict[str, tuple[str, str | None, dict[str, str]]] = {
    "a function": ("assert f([2]) == sorted([2])", None, {"f": "f"}),
    "two functions and a constant": ("assert f(1) == g(LIMIT)", None, {"f": "f", "g": "g", "LIMIT": "LIMIT"}),
    "a builtin": ("assert max([1]) == 1", None, {"program.max": "max"}),
    "a builtin within a tool": ("assert abs(sum([1]) - 1) < 1e-9", None, {"program.sum": "sum"}),
    "a builtin within a comprehension": ("assert all(max(x) == n for x, n in [])", None, {"program.max": "max"}),
    "a builtin beside the one that it equals": ("assert sum([1]) == max([1])", None, {"program.sum": "sum"}),
    "a tool within a tool": ("assert len(sorted([1])) == 1", None, {"program.sorted": "sorted"}),
    "a tool handed to a tool": ("assert list(map(len, ['a'])) == [1]", None, {"program.len": "len"}),
    "a tool with a key": ("assert sorted([1], key=abs) == [1]", None, {"program.sorted": "sorted"}),
    "only makers": ("assert list(range(1)) == [0]", None, {"program.range": "range"}),
    "a builtin in a function of the tests": (
        "def run(): assert max([1]) == 1\nrun()",
        None,
        {"run": "run", "max": "max"},
    ),
    "a builtin handed to a function of the tests": (
        "def check(f): assert f([1]) == min([1])\ncheck(max)",
        None,
        {"check": "check", "program.max": "max"},
    ),
    "an exception": ("try: pass\nexcept ValueError: pass", None, {}),
    "a builtin that the tests define": ("def sum(x): return x\nassert sum(1) == 1", None, {}),
    "a name that the tests define if the program does not": (
        "try: f\nexcept NameError: f = Solution().f\nassert f([1]) == max([1])",
        None,
        {"f": "f", "Solution": "Solution"},
    ),
    "a module": ("assert math.isclose(f(1), 1)", None, {"f": "f"}),
    "a function called like a module": ("assert math(1) == 1", None, {"program.math": "math"}),
    "a module that is imported": ("import math\nassert math.pi == f()", None, {"f": "f"}),
    "the entry point": ("assert max([min([1])]) == 1", "max", {"program.max": "max"}),
    "another entry point": ("assert max([f(1)]) == 1", "f", {"f": "f"}),
    "an entry point that the tests do not read": ("assert Solution().max([max(1, 2)])", "longest", {"Solution": "Solution"}),
    "names of the standard library": ("assert f(1) == Counter([sqrt(2)])", None, {"f": "f"}),
    "a name of the standard library": ("assert isclose(sqrt(4), 2)", None, {"program.sqrt": "sqrt"}),
    "a class that is named like a module": ("assert f(datetime(2020, 1, 2))", None, {"f": "f"}),
    "a name of the standard library as entry point": ("assert f(Counter('a'))", "Counter", {"f": "f", "program.Counter": "Counter"}),
    "the builtins": ("assert f(__builtins__, __name__)", None, {"f": "f"}),
    "HumanEval": ("def check(candidate): assert candidate(1) == 1", "f", {"f": "f", "check": "check"}),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_names_under_test(name: str) -> None:
    code, entry_point, names = NAMES[name]
    assert names_under_test(code, entry_point)[1] == names


def test_the_entry_point_comes_from_the_row() -> None:
    for key in ("entry_point", "fn_name"):
        assert row_tests("assert max([1]) == 1", {key: "max"}) == [AssertTest("assert max([1]) == 1", "max")]
    assert row_tests("assert f(1) == 1", {"entry_point": ""}) == [AssertTest("assert f(1) == 1")]
