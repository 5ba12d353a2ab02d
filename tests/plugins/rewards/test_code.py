"""Programs that a policy wrote, run for real in the sandbox, the malicious ones too."""
# ruff: noqa: E501 - programs on one line

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.registry import build
from rlrun.plugins.rewards.code.reward import AssertTest, CallTest, InputTest, program_of, row_tests
from rlrun.plugins.rewards.code.sandbox import Limits, Sandbox
from rlrun.plugins.testing import check_reward, sample

LIMITS = Limits(timeout=20, memory=256, scratch=4)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(LIMITS)


@pytest.fixture(scope="module")
def hasty() -> Sandbox:
    return Sandbox(LIMITS.model_copy(update={"timeout": 1.0}))


@pytest.mark.parametrize(
    ("program", "tests", "expected"),
    [
        ("print(int(input()) * 2)", [{"input": "3", "output": "6"}, {"input": "4\n", "output": "8\n\n"}], 1),
        ("print(int(input()) * 2)", [{"input": "3", "output": "6"}, {"input": "4", "output": "9"}], 0.5),
        ("print('1  2 \\n3')", [{"input": "", "output": "1 2\n3"}], 1),
        ("print('1 2 3')", [{"input": "", "output": "1 2\n3"}], 0),
        ("def add(a, b):\n    return a + b", [{"call": "add", "args": [1, 2], "returns": 3}], 1),
        (
            "def pair(a):\n    print(a)\n    return a, a",
            [{"call": "pair", "args": [1], "returns": [1, 1]}],
            1,
        ),
        (
            "class Solution:\n    def f(self, a):\n        return a",
            [{"call": "f", "args": [7], "returns": 7}],
            1,
        ),
        ("def add(a, b):\n    return a - b", [{"call": "add", "args": [1, 2], "returns": 3}], 0),
        ("def f(a):\n    return a", ["assert f(1) == 1", "assert f(2) == 3"], 0.5),
        ("import os\nos._exit(0)", ["assert False"], 0),
        ("raise SystemExit", [{"call": "f", "args": [], "returns": None}], 0),
        ("print(1", [{"input": "", "output": "1"}], 0),
        ("", [{"input": "", "output": ""}], 0),
    ],
)
def test_tests_of_all_kinds(program: str, tests: list[Any], expected: float) -> None:
    one = sample(f"Here it is:\n```python\n{program}\n```", metadata={"tests": tests})
    assert check_reward("code", {"aggregate": "share"}, [one]) == [expected]


SOLVED = {
    "calls": ("def f(a, b=1): return a + b", "assert f(1) == 2 and f(1, b=3) == 4"),
    "several lines": ("def f(a): return a", "for i in range(3):\n    assert f(i) == i"),
    "check(candidate)": (
        "def f(a): return a",
        "def check(candidate):\n    assert candidate(2) == 2\ncheck(f)",
    ),
    "tuples, sets, dicts": (
        "def f(): return (1, {2, 3}, {4: [5.5, None, True]}, b'6', 7j, frozenset('8'), range(9))",
        "assert f() == (1, {2, 3}, {4: [5.5, None, True]}, b'6', 7j, frozenset('8'), range(9))",
    ),
    "large numbers": ("def f(n): return 10**n", "assert f(9000) == 10**9000"),
    "not a number": ("def f(): return float('nan')", "import math\nassert math.isnan(f())"),
    "nearly": ("def f(): return 0.1 + 0.2", "assert abs(f() - 0.3) < 1e-6"),
    "modules that nobody imports": (
        "import math\ndef f(): return math.pi",
        "assert math.isclose(f(), 3.14159265358979)",
    ),
    "generators": (
        "def f(n):\n    while True: yield n",
        "from itertools import islice\nassert list(islice(f(2), 3)) == [2] * 3",
    ),
    "exceptions": (
        "def f(n): raise ValueError(n)",
        "try: f(1)\nexcept ValueError as error: assert str(error) == '1'\nelse: raise AssertionError",
    ),
    "methods": ("class Solution:\n    def f(self, a): return a * 2", "assert Solution().f([1]) == [1, 1]"),
    "objects with a state": (
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)",
        "s = Stack(); s.push(1); s.push(2); assert s.items == [1, 2]",
    ),
    "objects as arguments": (
        "class Node:\n    def __init__(self, x): self.x = x\ndef f(node, more=None): return node.x",
        "assert f(Node(3), more=[Node(4)]) == 3",
    ),
    "in place": (
        "def f(a, b): a.sort(); b['x'] = 1",
        "a, b = [2, 1], {}\nf(a, b)\nassert a == [1, 2] and b == {'x': 1}",
    ),
    "constants": ("LIMIT = 5", "assert LIMIT == 5"),
    "arrays": (
        "import numpy as np\ndef f(): return np.arange(3)",
        "assert np.array_equal(f(), [0, 1, 2]) and (f() == np.arange(3)).all()",
    ),
    "a main function": (
        "def f(): return 1\nif __name__ == '__main__': print(int(input()))",
        "assert f() == 1",
    ),
}


@pytest.mark.parametrize("name", SOLVED)
def test_assert_tests_of_every_style(name: str) -> None:
    program, test = SOLVED[name]
    assert grade(program, [test, test + "\nassert False"]) == 0.5


def grade(program: str, tests: list[Any], **params: Any) -> float:
    graded = sample(f"```python\n{program}\n```", metadata={"tests": tests})
    return build("rewards", "code", {"aggregate": "share", **params}).score(graded)


LIAR = "class Liar{bases}:\n    def __eq__(self, other): return True\n    __ne__ = lambda *_: False\n    __hash__ = object.__hash__\n"
CHEATS = {
    "equal to everything": LIAR.format(bases="") + "def f(*_): return Liar()",
    "a list equal to everything": LIAR.format(bases="(list)") + "def f(*_): return Liar()",
    "a number equal to everything": LIAR.format(bases="(int)") + "def f(*_): return Liar()",
    "ends well": "import os\nos._exit(0)",
    "ends well when called": "import os\ndef f(*_): os._exit(0)",
    "leaves": "import sys\ndef f(*_): sys.exit(0)",
    "replaces what compares": "import builtins\nfor n in 'abs', 'sorted', 'len', 'all', 'any', 'list': setattr(builtins, n, lambda *_: 0)\ndef f(*_): return 0",
    "defines what compares": "abs = sorted = list = lambda *_: 0\nclass math: isclose = staticmethod(lambda *_: True)\ndef f(*_): return 0",
    "prints a verdict": "print('passed'); print('True'); print(open(__file__).read() if '__file__' in globals() else '')\ndef f(*_): return None",
    "reads what it is asked": "import os\ndef f(*_): return os.read(3, 9999).decode()",
    "answers for others": """
import os
for each in range(3, 20):
    try: os.write(each, b'{"value": [42, []]}\\n' * 5)
    except OSError: pass
def f(*_): return 0""",
    "answers with orders": """
import os
def f(*_):
    os.write(4, b'{"error": ["SystemExit", "0"]}\\n{"error": ["KeyboardInterrupt", ""]}\\n')
    return 0""",
    "an exit as an exception": "class SystemExit(Exception): pass\ndef f(*_): raise SystemExit(0)",
    "looks for tests": """
import re, sys
def f(*_):
    frame = sys._getframe()
    while frame:
        for scope in frame.f_locals, frame.f_globals:
            for value in list(scope.values()):
                if isinstance(value, str) and (hit := re.search('== ([0-9]{4})', value)): return int(hit[1])
        frame = frame.f_back
    return 0""",
    "empties its argument": "def f(a, *_):\n    if isinstance(a, list): a.clear()\n    return []",
    "rubbish": "import os\ndef f(*_):\n    os.write(4, b'\\xff\\x00]}{\\n' * 99); return 0",
    "a deep answer": "import os\ndef f(*_): os.write(4, b'[' * 10**5 + b'\\n'); return 0",
    "a large answer": "import os\ndef f(*_):\n    while True: os.write(4, b'1' * 10**5)",
    "closes what it is asked with": "import os\nos.close(3); os.close(4)\ndef f(*_): return 0",
    "answers that collide": "def f(*_): return {k * (2**61 - 1) for k in range(30000)}",
    "no answer": "import time\ndef f(*_): time.sleep(100)",
    "a half line": "import os, time\ndef f(*_): os.write(4, b'{'); time.sleep(100)",
}
UNSOLVED = (
    "assert f([3, 1]) == 4711",
    "x = [3, 1]\nassert f(x) == sorted(x)",
    "assert math.isclose(f(1), 4711) or abs(f(1) - 4711) < 1e-6 or sorted(f([1])) == [4711]",
    {"call": "f", "args": [[1]], "returns": 4711},
)


@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_cheats_passes_nothing(name: str) -> None:
    """A test that compares in several ways, and a call; the slow suite has the others."""
    assert grade(CHEATS[name], list(UNSOLVED[2:]), timeout=0.7) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_cheats_passes_no_simple_test(name: str) -> None:
    assert grade(CHEATS[name], list(UNSOLVED[:2]), timeout=0.7) == 0


def test_a_short_limit_of_programs_is_not_the_trial_programs() -> None:
    hasty = Sandbox(Limits(timeout=1e-6, output=1000))
    assert "took longer" in hasty.run("print(1)", b"").problem


UNREADABLE = {
    "not a number": "NaN",
    "infinite": "-Infinity",
    "a million digits": "'1' * 10**6",
    "deep": "'[' * 10**5",
    "deep and closed": "'[' * 10**5 + ']' * 10**5",
    "twice a key": '\'{"a": 1, "a": 4711}\'',
    "two values": "'4711 4711'",
    "nothing": "''",
    "bytes": "'\\x00\\ud800'",
    "another type": "'{\"4711\": 4711}'",
    "as text": "'\"4711\"'",
    "half": "'[4711'",
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_an_unreadable_result_is_a_failed_test(name: str) -> None:
    text = UNREADABLE[name]
    text = text if "'" in text else repr(text)
    program = f"import os\ndef f():\n    os.write(4, ({text}).encode(errors='surrogatepass')); os._exit(0)"
    assert grade(program, [{"call": "f", "args": [], "returns": 4711}]) == 0


def test_all_tests_of_a_program_fit_into_the_time_of_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLRUN_SCORING_TIMEOUT", "1.0")
    tests = [{"input": "1", "output": "1"}] * 8
    assert grade("import time; print(input()); time.sleep(5)", tests, timeout=0.5) == 0


def test_text_that_is_no_program() -> None:
    tests = ["assert f() == 1", {"input": "", "output": "1"}, {"call": "f", "args": [], "returns": 1}]
    for text in ("\ud800", "\x00", "def f(:", "```", "``` " + " " * 200_000, "(" * 10_000, "\ufeff\u202e"):
        graded = sample(text, metadata={"tests": tests})
        assert build("rewards", "code", {"aggregate": "share"}).score(graded) == 0


def test_all_tests_must_pass_unless_told_otherwise() -> None:
    tests = [{"input": "3", "output": "3"}, {"input": "4", "output": "5"}]
    assert build("rewards", "code", {}).score(sample("print(input())", metadata={"tests": tests})) == 0


@pytest.mark.parametrize(
    ("label", "metadata", "expected"),
    [
        ('{"inputs": ["1"], "outputs": ["2"]}', {}, [InputTest("1", "2")]),
        ({"inputs": [[1]], "outputs": [2], "fn_name": "f"}, {}, [CallTest("f", [1], 2)]),
        ("assert f(1) == 2", {}, [AssertTest("assert f(1) == 2")]),
        (None, {"tests": [{"input": ["1", "2"], "output": 3}]}, [InputTest("1\n2", "3")]),
    ],
)
def test_tests_in_the_forms_of_datasets(label: Any, metadata: dict[str, Any], expected: list[Any]) -> None:
    assert row_tests(label, metadata) == expected


@pytest.mark.parametrize(
    "label", [None, "", [], "[]", [3], {"inputs": ["1"]}, {"inputs": [1], "outputs": []}]
)
def test_a_row_without_tests_is_an_error(label: Any) -> None:
    with pytest.raises(ValueError, match=r"test|shorter"):
        row_tests(label, {})


def test_the_program_is_the_last_block_after_the_thinking() -> None:
    text = "<think>```python\n1\n```</think> First:\n```\n2\n```\nBetter:\n```py\n3\n```\ndone"
    assert program_of(text) == "3\n"
    assert program_of("<think>1</think>2") == "2"


HONEST = {
    "NumPy": "import numpy as np; print(int(np.linalg.det(np.eye(50)) + np.random.default_rng(0).integers(1, 2)))",
    "SymPy": "import sympy; x = sympy.symbols('x'); print(sympy.integrate(2 * x, (x, 0, 1)) + 1)",
    "threads": "import threading as t; r = []; s = [t.Thread(target=r.append, args=(1,)) for _ in range(4)]; [x.start() for x in s]; [x.join() for x in s]; print(len(r) - 2)",
    "a pool of threads": "from concurrent.futures import ThreadPoolExecutor as P; print(sum(P(4).map(int, '11')))",
    "asyncio": "import asyncio\nasync def f(): await asyncio.sleep(0.01); return 2\nprint(asyncio.run(f()))",
    "another Python": "import subprocess, sys; print(subprocess.run([sys.executable, '-c', 'print(2)'], capture_output=True, text=True).stdout)",
    "a shell": "import os; os.system('echo 2')",
    "a fork": "import os\nif os.fork() == 0: print(2, flush=True); os._exit(0)\nos.wait()",
    "files": "import tempfile, shutil, os; f = tempfile.mkdtemp(); open(f + '/a', 'w').write('2'); shutil.copytree(f, 'b'); print(open('b/a').read()); shutil.rmtree(f)",
    "a database": "import sqlite3; d = sqlite3.connect('x.db'); d.execute('create table t (a)'); d.execute('insert into t values (2)'); d.commit(); print(*d.execute('select a from t').fetchone())",
    "time and chance": "import time, random, datetime, uuid, secrets; time.sleep(0.01); uuid.uuid4(); secrets.token_hex(); print(2)",
    "signals": "import signal, time; signal.signal(signal.SIGALRM, lambda *_: print(2)); signal.setitimer(signal.ITIMER_REAL, 0.01); time.sleep(0.2)",
    "recursion": "import sys, threading; sys.setrecursionlimit(10**6); threading.stack_size(64 << 20)\ndef f(n): return n if n < 3 else f(n - 1)\nt = threading.Thread(target=lambda: print(f(20000))); t.start(); t.join()",
    "a mapped file": "import mmap; open('x', 'wb').write(b'2' * 4096); f = open('x', 'r+b'); print(mmap.mmap(f.fileno(), 0)[:1].decode())",
    "much input": "import sys; print(len(sys.stdin.buffer.read()) + 2)",
    "another's exit": "import sys; print(2); sys.exit(0)",
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_programs_run(sandbox: Sandbox, name: str) -> None:
    ending = sandbox.run(HONEST[name], b"")
    assert (ending.output.split(), ending.problem) == ([b"2"], "")


@pytest.mark.parametrize("name", ["another Python", "a fork", "threads"])
def test_honest_programs_run_where_memory_is_watched(name: str) -> None:
    watched = Sandbox(LIMITS)
    watched.watch_memory()
    assert watched.run("x = bytearray(b'x') * (150 << 20)\n" + HONEST[name], b"").output.split() == [b"2"]


HARMFUL = {
    "endless loop": ("while True: pass", "took longer than"),
    "sleep": ("import time; time.sleep(1000)", "took longer than"),
    "waits for input": ("import sys; sys.stdin.read(); import time; time.sleep(99)", "took longer than"),
    # all processes write their errors at once, so the last line may be another one of the traceback
    "fork bomb": ("import os\nwhile True: os.fork()", "BlockingIOError|exited with status 1|took longer"),
    "forks that outlive it": (
        "import os, time\nif not os.fork():\n    os.setsid(); time.sleep(1000)\nos._exit(0)",
        "took longer than|^$",
    ),
    "thread bomb": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()",
        "can't start new thread|took longer",
    ),
    "memory": ("x = bytearray(10**10)", "MemoryError"),
    "memory bit by bit": ("x = []\nwhile True: x.append(bytearray(10**6))", "MemoryError|took longer"),
    "big number": ("9**9**9", "took longer than|MemoryError"),
    "deep recursion": ("def f(): f()\nf()", "RecursionError"),
    "much output": ("while True: print('x' * 1000)", "printed more than 100000 bytes"),
    "much error output": ("import sys\nwhile True: sys.stderr.write('x' * 1000)", "printed more than"),
    "writes to the system": ("open('/usr/evil', 'w')", "OSError|PermissionError"),
    "writes at the root": ("open('/evil', 'w')", "OSError|PermissionError"),
    "fills the disk": ("open('big', 'wb').write(bytes(10**7))", "OSError|signal|MemoryError|153"),
    "many files": ("for i in range(10**6): open(f'{i}', 'w').close()", "OSError"),
    "many open files": ("x = [open('a', 'w') for _ in range(1000)]", "Too many open files"),
    "network": ("import socket; socket.create_connection(('127.0.0.1', 22), 2)", "OSError|Error"),
    "name service": ("import urllib.request as u; u.urlopen('http://example.com')", "Error|took longer"),
    "kills everything": ("import os; os.kill(-1, 9)", "signal|status|^$"),
    "kills its parent": ("import os; os.kill(os.getppid(), 9)", "^$|Error|signal|status"),
    "reads secrets": ("import os; os.listdir(os.path.expanduser('~root/.ssh'))", "FileNotFound|Permission"),
    "sees processes": ("import os; os.listdir('/proc/1')", "FileNotFoundError"),
    "mounts": (
        "import ctypes; r = ctypes.CDLL(None).mount(b'x', b'/usr', b'tmpfs', 0, b''); assert r == 0",
        "AssertionError",
    ),
    "another user": ("import os; os.setuid(0)", "PermissionError"),
    "not text": ("print('\\ud800')", "UnicodeEncodeError"),
    "a null byte": ("\x00", "SyntaxError|ValueError"),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_harm_ends_within_its_limits(sandbox: Sandbox, hasty: Sandbox, name: str) -> None:
    program, problem = HARMFUL[name]
    ending = (hasty if "took longer" in problem else sandbox).run(program, b"")
    assert len(ending.output) <= 300_000
    assert re.search(problem, ending.problem), ending
    assert sandbox.run("print(1)", b"").output == b"1\n"


def test_input_of_any_size_and_output_by_the_side(sandbox: Sandbox) -> None:
    program = "import sys; data = sys.stdin.read(); sys.stderr.write('x' * 1000); print(len(data))"
    assert sandbox.run(program, b"y" * 10_000_000).output == b"10000000\n"
    assert sandbox.run("print('unread')", b"y" * 10_000_000).output == b"unread\n"


def test_an_environment_behind_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "environments" / "mine"
    link.parent.mkdir()
    link.symlink_to(sys.prefix)
    for name in ("prefix", "exec_prefix"):
        monkeypatch.setattr(sys, name, str(link))
    monkeypatch.setattr(sys, "executable", str(link / "bin" / Path(sys.executable).name))
    assert Sandbox(LIMITS).run("import numpy; print(numpy.arange(3).sum())", b"").output == b"3\n"


@pytest.mark.parametrize("kind", ["a file", "a link", "a folder that is not ours"])
def test_nobody_can_take_the_place_of_the_jail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    first = tmp_path / f"rlrun-jail-{os.getuid()}"
    if kind == "a file":
        first.touch()
    elif kind == "a link":
        first.symlink_to(tmp_path / "elsewhere")
    else:
        first.mkdir(mode=0o555)
        if os.geteuid() == 0:
            os.chown(first, 65534, 65534)
    assert Sandbox(LIMITS).run("print(1)", b"").output == b"1\n"
    assert list(tmp_path.iterdir()) == [first]


def test_a_program_may_use_a_scratch_folder_and_its_packages(sandbox: Sandbox) -> None:
    program = "import numpy\nopen('a', 'w').write('7')\nprint(open('a').read(), numpy.arange(3).sum())"
    assert sandbox.run(program, b"").output == b"7 3\n"
