"""Finds tests by reading their files, so that a table can name them: which exist, are slow, or never run.

Nothing is imported. A mark counts on the function, on its module (`pytestmark`), and under a name that the
module gives it (`slow = pytest.mark.slow`).
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class NamedTest:
    """A test function, as its source describes it."""

    slow: bool
    """It runs in `make test-all` only."""
    needs_gpu: bool
    """It runs on a CUDA device only."""
    skipped: bool
    """It is skipped, or expected to fail, whatever the machine has."""


@cache
def named_tests(path: Path) -> dict[str, NamedTest]:
    """Returns the test functions of a file by name; a parametrised test is one function."""
    module = ast.parse(path.read_text("utf-8"))
    values = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    of_module = [*_marks(values["pytestmark"], values)] if "pytestmark" in values else []
    return {
        node.name: _named_test(node, of_module, values)
        for node in module.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def _named_test(
    function: ast.FunctionDef | ast.AsyncFunctionDef, of_module: list[ast.expr], values: dict[str, ast.expr]
) -> NamedTest:
    own = [mark for decorator in function.decorator_list for mark in _marks(decorator, values)]
    marks = [*of_module, *own]
    names = [_mark_name(mark) for mark in marks]
    return NamedTest(
        slow="slow" in names,
        needs_gpu="gpu" in names,
        skipped=any(map(_always_skips, marks)) or _begins_with_skip(function),
    )


def _marks(node: ast.expr, values: dict[str, ast.expr]) -> Iterator[ast.expr]:
    """Yields the marks in an expression: one, a list of them, or a name of the module for either."""
    if isinstance(node, ast.List | ast.Tuple):
        for element in node.elts:
            yield from _marks(element, values)
    elif isinstance(node, ast.Name) and node.id in values:
        yield from _marks(values[node.id], values)
    elif ".mark." in f".{ast.unparse(node)}":
        yield node


def _mark_name(mark: ast.expr) -> str:
    return ast.unparse(mark.func if isinstance(mark, ast.Call) else mark).rpartition(".")[2]


def _always_skips(mark: ast.expr) -> bool:
    """Whether a mark is `skip`, or `xfail` without a condition."""
    condition = isinstance(mark, ast.Call) and (
        mark.args or any(keyword.arg == "condition" for keyword in mark.keywords)
    )
    return _mark_name(mark) == "skip" or (_mark_name(mark) == "xfail" and not condition)


def _begins_with_skip(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a statement at the top of the function calls `pytest.skip` or `pytest.xfail`."""
    return any(
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and ast.unparse(statement.value.func) in ("pytest.skip", "pytest.xfail")
        for statement in function.body
    )
