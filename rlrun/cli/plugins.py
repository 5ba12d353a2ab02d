"""`rlrun plugins`: lists, shows, creates and checks plugins."""

import ast
import json
import re
from collections import Counter
from dataclasses import asdict
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlrun.cli.arguments import AsJson
from rlrun.runner.host.printed_text import print_text
from rlrun.specs.problems.spelling import nearest

if TYPE_CHECKING:
    from rlrun.plugins.registry import PluginEntry

app = typer.Typer(
    help="List and show installed plugins; create and check your own.",
    no_args_is_help=True,
)


@app.command("list")
def list_plugins(as_json: AsJson = False) -> None:
    """List every plugin by kind, with what it is, without importing any."""
    from rlrun.plugins.kinds import METHODS
    from rlrun.plugins.registry import entries

    plugins = [entry for kind in METHODS for entry in entries(kind)]
    if as_json:
        fields = ("kind", "name", "target", "distribution", "version")
        print(json.dumps([{field: getattr(entry, field) for field in fields} for entry in plugins]))
        return
    width = max((len(entry.name) for entry in plugins), default=0)
    modules = Counter(entry.target.partition(":")[0] for entry in plugins)
    for kind in METHODS:
        print_text(kind)
        for entry in plugins:
            if entry.kind == kind:
                owner = "" if entry.distribution == "rlrun" else f"  ({entry.distribution} {entry.version})"
                about = _summary(entry, alone=modules[entry.target.partition(":")[0]] == 1)
                print_text(f"  {entry.name:{width}}  {about}{owner}")


def _summary(entry: "PluginEntry", *, alone: bool) -> str:
    """Returns the first sentence about a plugin in its source file: of the module's docstring if the plugin
    is `alone` there, else of the class's.
    """
    module, _, name = entry.target.partition(":")
    top, *parts = module.split(".")
    package = PathFinder.find_spec(top)
    if package is None or package.origin is None:
        return ""
    path = Path(package.origin).parent.joinpath(*parts)
    files = [path.with_suffix(".py"), path / "__init__.py"] if parts else [Path(package.origin)]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        return ""
    tree = ast.parse(file.read_text("utf-8"))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    nodes: list[ast.Module | ast.ClassDef] = [tree, *classes] if alone else [*classes, tree]
    texts = map(ast.get_docstring, nodes)
    text = next(filter(None, texts), "")
    return re.split(r"(?<=[^.\s]{3})\. ", " ".join(text.partition("\n\n")[0].split()))[0].removesuffix(".")


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of a plugin of any kind.")], as_json: AsJson = False
) -> None:
    """Show what a plugin does and the parameters it takes."""
    from rlrun.plugins.kinds import METHODS, how_to_install
    from rlrun.plugins.registry import entries

    kinds = [kind for kind in METHODS if any(entry.name == name for entry in entries(kind))]
    if not kinds:
        if install := next(filter(None, (how_to_install(kind, name) for kind in METHODS)), None):
            raise ValueError(f'no plugin is named "{name}": {install}')
        known = sorted({entry.name for kind in METHODS for entry in entries(kind)})
        meant = nearest(name, known)
        guess = f'did you mean "{meant}"? ' if meant else ""
        raise ValueError(f'no plugin is named "{name}"; {guess}installed: {", ".join(known)}')
    shown = [_describe(kind, name) for kind in kinds]
    if as_json:
        print(json.dumps(shown))
        return
    for plugin in shown:
        print_text(f"{plugin['name']} ({plugin['kind']})\n{plugin['about']}\n")
        for parameter in plugin["parameters"]:
            print_text(f"  {parameter['name']}: {parameter['type']} = {parameter['default']}")
            print_text(f"      {parameter['about']}")


@app.command()
def new(
    kind: Annotated[str, typer.Argument(help="reward, filter, data, rollout, tool, agent, tracker, …")],
    name: Annotated[str, typer.Argument(help="The name by which a spec will refer to it (`type`).")],
    folder: Annotated[
        Path, typer.Option(help="The folder in which to create the package's folder.")
    ] = Path(),
) -> None:
    """Create a package with a plugin of your own and its tests."""
    from rlrun.plugins.authoring.scaffold import TEMPLATES, write_package

    kinds = {kind: kind for kind in TEMPLATES} | {template.noun: kind for kind, template in TEMPLATES.items()}
    if kind not in kinds:
        meant = nearest(kind, list(kinds))
        guess = f'did you mean "{meant}"? ' if meant else ""
        raise ValueError(f'no kind of plugin is named "{kind}"; {guess}kinds: {", ".join(TEMPLATES)}')
    written = write_package(kinds[kind], name, folder)
    print_text(f"{written}\nnext: pip install -e {written} && rlrun plugins check {written.name}")


@app.command()
def check(
    package: Annotated[str, typer.Argument(help="Name of an installed package, as pip knows it.")],
) -> None:
    """Check that every plugin of a package keeps its contract.

    The exit code is 2 if a plugin does not.
    """
    from rlrun.plugins.registry import PluginError, entries_of

    failed = 0
    for entry in entries_of(package):
        problem = _problem(entry.kind, entry.name)
        failed += bool(problem)
        print_text(f"{entry.kind} {entry.name}: {problem or 'keeps its contract'}")
    if failed:
        raise PluginError(
            f"{failed} plugin{'' if failed == 1 else 's'} of {package} cannot be used: see the messages above"
        )


def _problem(kind: str, name: str) -> str:
    """Returns what is wrong with a plugin, or an empty string if nothing is."""
    from rlrun.plugins.testing import check_plugin

    try:
        check_plugin(kind, name)
    except (AssertionError, ValueError) as error:
        return str(error)
    except Exception as error:  # the plugin's own code may raise anything
        return f"{type(error).__name__}: {error}"
    return ""


def _describe(kind: str, name: str) -> dict[str, Any]:
    from rlrun.plugins.registry import load
    from rlrun.specs.reading.reference import list_settings

    plugin = load(kind, name)
    parameters = [asdict(setting) for setting in list_settings(plugin.Params)]
    about = " ".join((plugin.__doc__ or "").split())
    return {"kind": kind, "name": name, "about": about, "parameters": parameters}


@app.command()
def trust(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder, with all folders in it. Default: list trusted folders.")
    ] = None,
    *,
    remove: Annotated[bool, typer.Option("--remove", help="Trust the folder no longer.")] = False,
) -> None:
    """Trust the plugin files in a folder: its specs may name them without --allow-local-plugins.

    The folder must be yours alone to write. Trust is kept in ~/.config/rlrun, and remains when files change.
    """
    from rlrun.specs.trusted_folders import danger_of, store_trusted_folders, trusted_folders

    folders = trusted_folders()
    if folder is None:
        print_text(*folders, sep="\n") if folders else print_text("no folder is trusted")
        return
    real = folder.resolve()
    if remove:
        if real not in folders:
            raise ValueError(
                f"{real} is not trusted; trusted folders: {', '.join(map(str, folders)) or 'none'}"
            )
        store_trusted_folders([each for each in folders if each != real])
        print_text(f"{real} is trusted no longer")
        return
    if not real.is_dir():
        raise ValueError(f"{folder} is not a folder: name the folder of your plugins")
    if real in (Path.home().resolve(), *Path.home().resolve().parents):
        raise ValueError(f"{real} has everything that you download: name the folder of your plugins")
    if danger := danger_of(real, real):
        raise ValueError(f"{real} cannot be trusted: {danger}")
    store_trusted_folders([*{*folders, real}])
    print_text(
        f"specs in {real} may now name plugins in its files; undo: rlrun plugins trust {real} --remove"
    )
