"""Measures the structure of the package and fails where it breaks a limit: `python scripts/structure.py`.

A room is a folder of the package whose modules belong together. Rooms should form floors: every import leads
to a lower floor, so that a newcomer can read from the bottom up. Prints JSON; `make lint` runs it.
"""

import ast
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import grimp

PACKAGE = "rlrun"
ROOT = Path(__file__).parents[1]
ROOMS_WITHIN = {
    "rlrun.converters",
    "rlrun.runner",
    "rlrun.runner.engines",
    "rlrun.runner.engines.native",
    "rlrun.runner.trainer",
    "rlrun.specs",
}
"""Packages whose folders are rooms of their own; any other folder of the package is one room as a whole."""
LIMITS = {
    "folders_over_20_modules": 0,
    "two_way_pairs": 0,
    "arrows_up": 0,
    "file_names_in_3_folders": 0,
    "repeated_test_files": 0,
}
"""The largest value that `make lint` accepts."""
ONE_COMMAND_PER_MODULE = {"rlrun.cli"}
"""Folders that may have more than 20 modules."""
SAME_MEANING = {"__init__", "__main__", "setup", "server"}
"""File names that mean the same in every folder: each kind of engine has its `setup` and its `server`."""


def main() -> int:
    """Prints the figures; 1 where one of them is over its limit."""
    figures = measure()
    print(json.dumps(figures, indent=2))
    broken = [name for name, limit in LIMITS.items() if len(figures[name]) > limit]
    for name in broken:
        print(f"{name}: {len(figures[name])}, the limit is {LIMITS[name]}", file=sys.stderr)
    return 1 if broken else 0


def measure() -> dict[str, object]:
    """Every figure by its name."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    modules = sorted(module for module in graph.modules if path_of(module).is_file())
    arrows = room_arrows(graph, modules)
    trees = {module: ast.parse(path_of(module).read_text()) for module in modules}
    functions = sorted(length for tree in trees.values() for length in function_lengths(tree))
    lines = sorted(len(path_of(module).read_text().splitlines()) for module in modules)
    return {
        "modules": len(modules),
        "rooms": len({room_of(module) for module in modules}),
        "module_lines": {"median": lines[len(lines) // 2], "over_200": sum(count > 200 for count in lines)},
        "function_lines": {
            "median": functions[len(functions) // 2],
            "p90": functions[len(functions) * 9 // 10],
            "over_45": sum(length > 45 for length in functions),
        },
        "folders_over_20_modules": crowded_folders(modules),
        "two_way_pairs": two_way_pairs(arrows),
        "arrows_up": arrows_up(arrows),
        "file_names_in_3_folders": repeated_file_names(modules),
        "repeated_test_files": repeated_test_files(),
        "public_names_in_2_modules": len(repeated_public_names(trees)),
    }


def repeated_test_files() -> list[str]:
    """Names that several files of tests have: pytest refuses to collect them in one run."""
    names = Counter(
        path.name for folder in ("tests", "packages") for path in (ROOT / folder).rglob("test_*.py")
    )
    return sorted(name for name, count in names.items() if count > 1)


def path_of(module: str) -> Path:
    """The file of a module that is not a package."""
    return ROOT / (module.replace(".", "/") + ".py")


def room_of(module: str) -> str:
    """The room that a module belongs to."""
    parts = module.split(".")[:-1]
    while len(parts) > 1 and ".".join(parts[:-1]) not in ROOMS_WITHIN | {PACKAGE}:
        parts.pop()
    return ".".join(parts)


def room_arrows(graph: grimp.ImportGraph, modules: list[str]) -> Counter[tuple[str, str]]:
    """Imports from one room to another, counted by pair; loose modules of a package are its own room."""
    return Counter(
        (room_of(module), room_of(imported))
        for module in modules
        for imported in graph.find_modules_directly_imported_by(module)
        if path_of(imported).is_file() and room_of(imported) != room_of(module)
    )


def rooms_of(arrows: Counter[tuple[str, str]]) -> set[str]:
    """The rooms that import or are imported."""
    return {room for pair in arrows for room in pair}


def two_way_pairs(arrows: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs of rooms that import each other."""
    return [pair for pair in combinations(sorted(rooms_of(arrows)), 2) if {pair, pair[::-1]} <= arrows.keys()]


def arrows_up(arrows: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Pairs of rooms whose imports lead up, in an order of the rooms that keeps them few.

    Rooms without imports of the remaining ones go to the bottom in turn; where a cycle leaves none, the room
    with the fewest such imports does (a heuristic for the smallest feedback arc set, Eades et al. 1993).
    """
    remaining, up = rooms_of(arrows), []
    while remaining:
        leaving = {
            room: sum(count for (a, b), count in arrows.items() if a == room and b in remaining)
            for room in sorted(remaining)
        }
        lowest = min(leaving, key=leaving.__getitem__)
        remaining.discard(lowest)
        up += [pair for pair in sorted(arrows) if pair[0] == lowest and pair[1] in remaining]
    return up


def crowded_folders(modules: list[str]) -> list[str]:
    """Folders with more than 20 modules."""
    folders = Counter(module.rpartition(".")[0] for module in modules)
    return sorted({name for name, count in folders.items() if count > 20} - ONE_COMMAND_PER_MODULE)


def repeated_file_names(modules: list[str]) -> dict[str, list[str]]:
    """File names of three folders or more, apart from those that mean the same everywhere."""
    folders = defaultdict(list)
    for module in modules:
        folder, _, name = module.rpartition(".")
        folders[name].append(folder)
    return {
        name: where for name, where in sorted(folders.items()) if len(where) > 2 and name not in SAME_MEANING
    }


def function_lengths(tree: ast.Module) -> Iterator[int]:
    """Lines of every function, its decorators left out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def repeated_public_names(trees: dict[str, ast.Module]) -> dict[str, list[str]]:
    """Public classes and functions that several modules define."""
    defined = defaultdict(list)
    for module, tree in trees.items():
        for node in tree.body:
            is_definition = isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            if is_definition and not node.name.startswith("_"):
                defined[node.name].append(module)
    return {name: where for name, where in defined.items() if len(where) > 1}


if __name__ == "__main__":
    sys.exit(main())
