"""`rlrun plugins`: what is installed, and what parameters it takes."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer

from rlrun.cli.arguments import AsJson
from rlrun.specs.spelling import nearest

app = typer.Typer(help="Algorithms, data sources, rewards, filters and trackers.", no_args_is_help=True)


@app.command("list")
def list_plugins(as_json: AsJson = False) -> None:
    """List every plugin by kind, without importing any."""
    from rlrun.plugins.registry import METHODS, entries

    found = [entry for kind in METHODS for entry in entries(kind)]
    if as_json:
        fields = ("kind", "name", "target", "distribution", "version")
        print(json.dumps([{field: getattr(entry, field) for field in fields} for entry in found]))
        return
    width = max((len(entry.name) for entry in found), default=0)
    for kind in METHODS:
        print(kind)
        for entry in found:
            if entry.kind == kind:
                print(f"  {entry.name:{width}}  {entry.distribution} {entry.version}  {entry.target}")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of a plugin, of whatever kind.")], as_json: AsJson = False
) -> None:
    """Show what a plugin does and the parameters it takes."""
    from rlrun.plugins.registry import METHODS, entries

    kinds = [kind for kind in METHODS if any(entry.name == name for entry in entries(kind))]
    if not kinds:
        known = sorted({entry.name for kind in METHODS for entry in entries(kind)})
        meant = nearest(name, known)
        guess = f'did you mean "{meant}"? ' if meant else ""
        raise ValueError(f'no plugin is named "{name}"; {guess}installed: {", ".join(known)}')
    shown = [_describe(kind, name) for kind in kinds]
    if as_json:
        print(json.dumps(shown))
        return
    for each in shown:
        print(f"{each['name']} ({each['kind']})\n{each['about']}\n")
        for parameter in each["parameters"]:
            print(f"  {parameter['name']}: {parameter['type']} = {parameter['default']}")
            print(f"      {parameter['about']}")


def _describe(kind: str, name: str) -> dict[str, Any]:
    from rlrun.plugins.registry import load
    from rlrun.specs.reference import settings_of

    plugin = load(kind, name)
    parameters = [asdict(setting) for setting in settings_of(plugin.Params)]
    about = " ".join((plugin.__doc__ or "").split())
    return {"kind": kind, "name": name, "about": about, "parameters": parameters}
