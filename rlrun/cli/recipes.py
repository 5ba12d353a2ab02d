"""`rlrun recipes`: lists the specs that rlrun ships."""

import json
from collections.abc import Iterator

from rlrun.cli.arguments import AsJson
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.paths import RECIPES


def command(as_json: AsJson = False) -> None:
    """List the shipped recipes: specs to launch, or to begin a file with."""
    recipes = dict(read_recipes())
    if as_json:
        rows = [
            {"name": name, "about": about, "path": str(RECIPES / f"{name}.toml")}
            for name, about in recipes.items()
        ]
        print(json.dumps(rows))
        return
    width = max(map(len, recipes))
    for name, about in recipes.items():
        print_text(f"{name:{width}}  {about}")
    print_text("\nto see the plan of a recipe: rlrun plan NAME")
    print_text('to change a recipe, begin a file with: extends = "package:NAME.toml"')


def read_recipes() -> Iterator[tuple[str, str]]:
    """Yields the name of each recipe and the sentence of its first line."""
    for path in sorted(RECIPES.glob("*.toml"), key=lambda path: path.stem):
        with path.open(encoding="utf-8") as file:
            yield path.stem, file.readline().removeprefix("# ").strip()
