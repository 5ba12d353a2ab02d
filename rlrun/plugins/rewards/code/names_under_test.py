"""Decides which names in a row's tests are the program's, and which are Python's.

    assert f([2, 1]) == sorted([1, 2])     `f` is the program's, and `sorted` is Python's
    assert max([1, 2]) == 2                `max` is the program's
    assert math.isclose(math(4), 2)        first the module, then the program's function

The tests alone decide, so that a program cannot replace what its result is compared with:

1. A name that is neither a builtin nor a module is the program's. The best-known names of the standard
   library (`Counter`, `sqrt`, `isclose`) count as builtins, because tests use them without an import.
2. The name of a module is the module before a dot, and the program's elsewhere: modules cannot be called.
3. Builtins are Python's if the tests name anything by rule 1 or 2. Otherwise a builtin is under test: of
   those that the tests call, the innermost on the left of a comparison, and a tool of tests (`abs`, `list`)
   only if they call no other builtin.
4. The row's `entry_point` is under test, and no other builtin is.
5. A name under test is the program's in the statements of the tests, and Python's in functions that the tests
   define, unless it is only used there.
6. A module that does not exist is the program: `from solution import f`, as in KodCode.

This module imports nothing of rlrun, because its source is prepended to the tests, after that of `calls`.
"""

import ast
import builtins
import symtable
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from types import CodeType

_MODULES = {"np": "numpy", "numpy": "numpy", **{name: name for name in sys.stdlib_module_names}}
"""Modules that tests use without an import, since they were written to run after the program's imports."""
_STANDARD = {
    **dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"), "collections"),
    **dict.fromkeys(("inf", "isclose", "isinf", "isnan", "nan", "pi", "sqrt"), "math"),
    **{"Decimal": "decimal", "Fraction": "fractions", "deepcopy": "copy"},
    **{"datetime": "datetime", "timedelta": "datetime"},
    **dict.fromkeys(("Any", "Dict", "List", "Optional", "Set", "Tuple", "Union"), "typing"),
}
"""Names of the standard library that tests use as if they were builtins, and where they are.

Names that programs often give to functions of another meaning (`product`, `gcd`) are not among them.
"""
_CHECKING = frozenset({"abs", "isclose", "isinf", "isnan", "len", "reversed", "round", "sorted"})
"""Builtins with which tests check results: under test if the tests call only these and `_MAKING`."""
_MAKING = frozenset(
    {"all", "any", "bool", "bytes", "callable", "dict", "enumerate", "filter", "float", "frozenset"}
    | {"getattr", "hasattr", "int", "isinstance", "issubclass", "iter", "list", "map", "next", "print"}
    | {"range", "repr", "set", "setattr", "str", "tuple", "type", "zip"}
    | {"inf", "nan", "pi", "deepcopy", "Any", "Dict", "List", "Optional", "Set", "Tuple", "Union"}
)
"""Builtins with which tests make arguments and take results apart: under test if nothing else is."""
_OTHERS = (
    frozenset(
        name
        for name, value in vars(builtins).items()
        if callable(value)
        and not name.startswith("_")
        and not (isinstance(value, type) and issubclass(value, BaseException))
    )
    | _STANDARD.keys()
) - (_CHECKING | _MAKING)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def names_under_test(
    code: str, entry_point: str | None = None
) -> tuple[CodeType, dict[str, str], dict[str, object]]:
    """Returns the compiled tests, and by their names in these, the program's names and the modules.

    If the tests define `check(candidate)` without calling it, as in HumanEval, they check the `entry_point`.
    Test functions, `Test…` classes and unittest cases that the code only defines are run, as by pytest.
    """
    code, renamed = _without_imports_of_the_program(code)
    read, bound = _global_names(code)
    calls = list(_missing_calls(ast.parse(code), read))
    if entry_point is not None and entry_point not in read and "check" in bound - read:
        calls.append(f"check({entry_point})")
    code = "\n".join([code, *calls])
    read, bound = _global_names(code)
    tree = ast.parse(code)
    free = read - bound
    undefined = {name for name in read if not _is_python(name)}
    modules = free & _MODULES.keys()
    values = modules & {node.id for node in _names(tree)}
    under_test = values - (_STANDARD.keys() if undefined - bound else set())
    if entry_point is not None:
        under_test |= {entry_point} & (free - undefined)
    elif not under_test and undefined <= bound:
        under_test = _builtins_under_test(tree, free)
    classes = values - under_test  # `datetime(2020, 1, 2)`, beside `datetime.datetime.now()`
    names = {name: renamed.get(name, name) for name in undefined} | {
        _renamed(tree, name): name for name in under_test
    }
    imported = dict(_imported(modules))
    imported |= {alias: imported[name] for alias, name in names.items() if name in imported}
    imported |= {name: _standard(name) for name in free & _STANDARD.keys() - modules - set(names)}
    imported |= {_renamed(tree, name): _standard(name) for name in classes}
    return compile(tree, "tests.py", "exec", dont_inherit=True), names, imported


def _without_imports_of_the_program(code: str) -> tuple[str, dict[str, str]]:
    """Returns the tests without imports from modules that do not exist, and the program's names by theirs."""
    tree = ast.parse(code)
    imports = [
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and node.module and not node.level and not _exists(node.module)
    ]
    if not imports:
        return code, {}
    tree.body = [node for node in tree.body if node not in imports]
    aliases = {alias.asname or alias.name: alias.name for node in imports for alias in node.names}
    builtins_of_program = {name: f"program_{name}" for name in aliases if _is_python(name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            node.id = builtins_of_program.get(node.id, node.id)
    names = {builtins_of_program.get(name, name): its_name for name, its_name in aliases.items()}
    return ast.unparse(tree), names


def _exists(module: str) -> bool:
    return find_spec(module.partition(".")[0]) is not None


def _missing_calls(tree: ast.Module, read: set[str]) -> Iterator[str]:
    """Yields the statements that run the tests which the code only defines."""
    methods_used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in tree.body:
        if not isinstance(node, _DEFINITIONS) or node.name in read:
            continue
        if not isinstance(node, ast.ClassDef):
            if node.name.startswith("test"):
                yield f"{node.name}()"
        elif any("TestCase" in ast.unparse(base) for base in node.bases):
            if "main" not in methods_used:
                result = f"__import__('unittest').main(defaultTest={node.name!r}, exit=False).result"
                yield f"assert {result}.wasSuccessful()"
        elif node.name.startswith("Test"):
            methods = [part.name for part in node.body if isinstance(part, ast.FunctionDef)]
            yield from (f"{node.name}().{name}()" for name in methods if name.startswith("test"))


def _is_python(name: str) -> bool:
    """Returns whether a name is a module's, a builtin's, or as well known; so is `__builtins__`."""
    return name in _MODULES or name in _STANDARD or hasattr(builtins, name) or name.startswith("__")


def _global_names(code: str) -> tuple[set[str], set[str]]:
    """Returns the global names that the tests read, and those that they assign, define or import."""
    read, bound = set(), set()
    tables = [symtable.symtable(code, "tests.py", "exec")]
    for table in tables:
        tables += table.get_children()  # the loop reaches them too
        for symbol in table.get_symbols():
            if table is not tables[0] and not symbol.is_global():
                continue
            if symbol.is_referenced():
                read.add(symbol.get_name())
            if symbol.is_assigned() or symbol.is_imported():
                bound.add(symbol.get_name())
    return read, bound


def _builtins_under_test(tree: ast.Module, read: set[str]) -> set[str]:
    asserts = [node for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    bodies = [part for node in ast.walk(tree) if isinstance(node, _DEFINITIONS) for part in node.body]
    for kind in (_OTHERS, _CHECKING, _MAKING):
        for nodes in (tree.body, asserts, bodies):
            called = _innermost(nodes, kind & read)
            handed_on = {node.id for part in nodes for node in _names(part, in_functions=False)} & kind & read
            if called or handed_on:
                return called or handed_on
    return set()


def _innermost(nodes: Iterable[ast.AST], names: set[str] | frozenset[str]) -> set[str]:
    """Returns those of the names that are called with arguments that contain no call of another."""
    called: set[str] = set()
    for node in nodes:
        if isinstance(node, _DEFINITIONS):
            continue
        if isinstance(node, ast.Compare):
            called |= _innermost([node.left], names) or _innermost(node.comparators, names)
            continue
        inner = _innermost(ast.iter_child_nodes(node), names)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not inner:
            inner = {node.func.id} & names
        called |= inner
    return called


def _names(node: ast.AST, in_functions: bool = True) -> Iterator[ast.Name]:
    """Yields the names that are read as a value, rather than for an attribute after a dot."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node
    if isinstance(node, _DEFINITIONS) and not in_functions:
        return
    for child in ast.iter_child_nodes(node):
        if not (isinstance(node, ast.Attribute) and isinstance(child, ast.Name)):
            yield from _names(child, in_functions)


def _renamed(tree: ast.Module, name: str) -> str:
    """Renames the uses of a name in statements, and returns the new name; the same name if there are none."""
    nodes = [node for node in _names(tree, in_functions=False) if node.id == name]
    for node in nodes:
        node.id = f"program.{name}"  # tests cannot have such a name
    return f"program.{name}" if nodes else name


def _imported(modules: Iterable[str]) -> Iterator[tuple[str, object]]:
    for name in modules:
        with suppress(ImportError):  # some modules of the standard library only exist on other systems
            yield name, import_module(_MODULES[name])


def _standard(name: str) -> object:
    return getattr(import_module(_STANDARD[name]), name)
