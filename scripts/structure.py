"""Measures the structure of the package and fails where its imports break a rule:
`python scripts/structure.py`.

A room is a folder of the package whose modules belong together. Rooms form floors: every import leads to a
lower floor, and modules of a room import each other in no circle, so that a newcomer can read from the bottom
up. Imports within functions and for types count. Sizes and counts are printed, never limited: cut
a module or a folder where a reader would. Prints JSON; `make lint` runs it.
"""

import ast
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
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
FAMILIES = "rlrun.models.families."
LAYERS = {
    "trainer_layers": "rlrun.runner.trainer.model",
    "engine_layers": "rlrun.runner.engines.native.model",
}
"""The room of the modules with a family's layers, which are beside its other facts."""
RULES = ("circle", "two_way_pairs", "arrows_up", "repeated_test_files")
"""Figures that list violations; `make lint` fails where one is not empty."""
NAMED = {
    "qwen3_next": r"qwen3_?next",
    "glm4_moe": r"glm4_?moe",
    "gpt_oss": r"gpt_?oss",
    "broadcast": r"broadcast",
    "shared_memory": r"shared_?memory|SharedWeights",
    "elements": r"\"elements\"|delta_?folder",
    "lora": r"lora",
}
"""Three model families, three weight carriers and adapters: how many modules name each shows whether a thing
has one owner."""


def main() -> int:
    """Prints the figures; returns 1 where a rule is broken."""
    figures = measure()
    print(json.dumps(figures, indent=2))
    broken = [rule for rule in RULES if figures[rule]]
    for rule in broken:
        print(f"{rule}: {figures[rule]}", file=sys.stderr)
    return 1 if broken else 0


def measure() -> dict[str, object]:
    """Returns every figure by its name."""
    graph = grimp.build_graph(PACKAGE, cache_dir=None)
    modules = sorted(module for module in graph.modules if path_of(module).is_file())
    arrows = room_arrows(graph, modules)
    texts = {module: path_of(module).read_text() for module in modules}
    trees = {module: ast.parse(text) for module, text in texts.items()}
    code = {module: len(code_lines(trees[module], texts[module])) for module in modules}
    return {
        "modules": len(modules),
        "code_lines": sum(code.values()),
        "rooms": by_room(code),
        "longest_argument_lists": longest_argument_lists(trees),
        "modules_that_name": {
            name: sum(bool(re.search(pattern, text, re.IGNORECASE)) for text in texts.values())
            for name, pattern in NAMED.items()
        },
        "circle": circle(graph),
        "two_way_pairs": two_way_pairs(arrows),
        "arrows_up": arrows_up(arrows),
        "repeated_test_files": repeated_test_files(),
    }


def by_room(code: dict[str, int]) -> dict[str, dict[str, int]]:
    """Returns modules and lines of code of each room."""
    rooms: dict[str, dict[str, int]] = {}
    for module, lines in code.items():
        room = rooms.setdefault(room_of(module), {"modules": 0, "code_lines": 0})
        room["modules"] += 1
        room["code_lines"] += lines
    return rooms


def code_lines(tree: ast.Module, text: str) -> set[int]:
    """Returns the numbers of the lines that are neither blank, comment, docstring nor import."""
    lines = {
        number
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, ast.Import | ast.ImportFrom) or (is_text and isinstance(node.value.value, str)):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def longest_argument_lists(trees: dict[str, ast.Module], count: int = 5) -> dict[str, int]:
    """Returns the functions with the most arguments."""
    lengths = Counter(
        {
            f"{module}.{node.name}": len(node.args.posonlyargs)
            + len(node.args.args)
            + len(node.args.kwonlyargs)
            for module, tree in trees.items()
            for node in functions_of(tree)
        }
    )
    return dict(lengths.most_common(count))


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yields every function and method."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def repeated_test_files() -> list[str]:
    """Returns names that several files of tests have: pytest refuses to collect them in one run."""
    names = Counter(
        path.name for folder in ("tests", "packages") for path in (ROOT / folder).rglob("test_*.py")
    )
    return sorted(name for name, count in names.items() if count > 1)


def path_of(module: str) -> Path:
    """Returns the file of a module that is not a package."""
    return ROOT / (module.replace(".", "/") + ".py")


def room_of(module: str) -> str:
    """Returns the room that a module belongs to; a family's layers belong to the room that computes them."""
    name = module.rpartition(".")[2]
    if module.startswith(FAMILIES) and name in LAYERS:
        return LAYERS[name]
    parts = module.split(".")[:-1]
    while len(parts) > 1 and ".".join(parts[:-1]) not in ROOMS_WITHIN | {PACKAGE}:
        parts.pop()
    return ".".join(parts)


def room_arrows(graph: grimp.ImportGraph, modules: list[str]) -> Counter[tuple[str, str]]:
    """Returns the number of imports between two rooms, by pair; a package's loose modules are a room."""
    return Counter(
        (room_of(module), room_of(imported))
        for module in modules
        for imported in graph.find_modules_directly_imported_by(module)
        if path_of(imported).is_file() and room_of(imported) != room_of(module)
    )


def circle(graph: grimp.ImportGraph) -> list[str]:
    """Returns modules of which each imports the one before it, the first again at the end; [] if there are
    none. Of several circles, one."""
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def rooms_of(arrows: Counter[tuple[str, str]]) -> set[str]:
    """Returns the rooms that import or are imported."""
    return {room for pair in arrows for room in pair}


def two_way_pairs(arrows: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns pairs of rooms that import each other."""
    return [pair for pair in combinations(sorted(rooms_of(arrows)), 2) if {pair, pair[::-1]} <= arrows.keys()]


def arrows_up(arrows: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns pairs of rooms whose imports lead up, in an order of the rooms that keeps them few.

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


if __name__ == "__main__":
    sys.exit(main())
