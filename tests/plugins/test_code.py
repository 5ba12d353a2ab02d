"""Programs that a policy wrote, run for real in the sandbox, the malicious ones too."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlrun.plugins.registry import build
from rlrun.plugins.rewards.code.reward import program_of
from rlrun.plugins.rewards.code.row_tests import AssertTest, CallTest, InputTest, row_tests
from rlrun.plugins.rewards.code.sandbox import Limits, Sandbox
from rlrun.plugins.testing import check_reward, sample

LIMITS = Limits(seconds=5, memory=256, processes=8, scratch=4, output=100_000)


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    return Sandbox(LIMITS)


@pytest.fixture(scope="module")
def hasty() -> Sandbox:
    return Sandbox(replace(LIMITS, seconds=1.0))


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


HARMFUL = {
    "endless loop": ("while True: pass", "took longer than"),
    "sleep": ("import time; time.sleep(1000)", "took longer than"),
    "waits for input": ("import sys; sys.stdin.read(); import time; time.sleep(99)", "took longer than"),
    "fork bomb": ("import os\nwhile True: os.fork()", "BlockingIOError"),
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
def test_harm_ends_within_its_limits(hasty: Sandbox, name: str) -> None:
    program, problem = HARMFUL[name]
    ending = hasty.run(program, b"")
    assert len(ending.output) <= 300_000
    assert re.search(problem, ending.problem), ending
    assert hasty.run("print(1)", b"").output == b"1\n"


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


def test_a_program_may_use_a_scratch_folder_and_its_packages(sandbox: Sandbox) -> None:
    program = "import numpy\nopen('a', 'w').write('7')\nprint(open('a').read(), numpy.arange(3).sum())"
    assert sandbox.run(program, b"").output == b"7 3\n"
