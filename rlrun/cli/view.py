"""`rlrun view`: shows runs on a local page, or writes the page to a file."""

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import RunsDir, complete_run_or_sweep
from rlrun.runner.host.printed_text import print_text

if TYPE_CHECKING:
    from rlrun.runner.records.run_folder import RunFolder
    from rlrun.runner.sweeps.sweep_folder import SweepFolder
    from rlrun.runner.view.viewed_run import ViewedRun

_MAX_RUNS = 50


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN]...",
            autocompletion=complete_run_or_sweep,
            help="Names or folders of runs, or names of sweeps. Default: the newest runs.",
        ),
    ] = None,
    runs_dir: RunsDir = Path("runs"),
    html: Annotated[
        Path | None,
        typer.Option("--html", help="Write the page to this file, which needs no server, and end."),
    ] = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Port of the page. 0: any that is free.")
    ] = 0,
) -> None:
    """Show metrics and samples of runs in a browser, also while they run.

    The page is on this machine's loopback address only, and its address contains a random token. Nothing is
    written to the runs' folders.
    """
    from rlrun.runner.view.indexer import Indexer
    from rlrun.runner.view.viewed_run import ViewedRun

    folders = _folders(runs_dir, names or [], newest=html is not None)
    indexers = [Indexer(folder) if html is not None else None for folder in folders]
    for indexer in indexers:
        if indexer is not None:
            indexer.update()
    runs = [ViewedRun(folder, indexer) for folder, indexer in zip(folders, indexers, strict=True)]
    sweeps = _sweeps_of(folders)
    title = ", ".join(run.folder.name for run in runs[:3])
    try:
        if html is not None:
            _write(html, runs, sweeps, title)
        else:
            _serve(runs, sweeps, title, port, select_all=bool(names))
    finally:
        for run in runs:
            run.close()


def _folders(runs_dir: Path, names: list[str], *, newest: bool) -> "list[RunFolder]":
    """Returns the named runs, and those of named sweeps; without names, the newest runs.

    Raises ValueError if there is none.
    """
    from rlrun.cli.run_states import find_run, list_runs

    if not names:
        find_run(runs_dir, None)
        return list_runs(runs_dir)[: 1 if newest else _MAX_RUNS]
    return [folder for name in names for folder in _named(runs_dir, name)]


def _named(runs_dir: Path, name: str) -> "list[RunFolder]":
    """Returns the run with this name or folder, or the trials of the sweep with this name, newest first."""
    from rlrun.cli.run_states import find_run, list_runs, split_folder
    from rlrun.runner.sweeps.sweep_folder import SweepFolder

    folder, own_name = split_folder(runs_dir, name)
    named = folder / own_name
    if SweepFolder(named.absolute()).record.exists() and (trials := list_runs(named)):
        return trials
    return [find_run(runs_dir, name)]


def _sweeps_of(folders: "list[RunFolder]") -> "list[SweepFolder]":
    """Returns the sweeps that the runs are trials of."""
    from rlrun.runner.sweeps.sweep_folder import SweepFolder

    parents = dict.fromkeys(folder.path.absolute().parent for folder in folders)
    return [sweep for sweep in map(SweepFolder, parents) if sweep.record.exists()]


def _write(path: Path, runs: "list[ViewedRun]", sweeps: "list[SweepFolder]", title: str) -> None:
    from rlrun.runner.view.export import collect
    from rlrun.runner.view.page import make_page

    page = make_page(title, collect(runs, sweeps))
    path.write_bytes(page.html)
    print_text(f"{path}: {len(page.html) / (1 << 20):.1f} MiB")


def _serve(
    runs: "list[ViewedRun]", sweeps: "list[SweepFolder]", title: str, port: int, *, select_all: bool
) -> None:
    """Serves the page until Ctrl-C. `select_all`: it opens with all runs over each other, not with one."""
    from rlrun.runner.view.answers import Answers
    from rlrun.runner.view.page import make_page
    from rlrun.runner.view.server import ViewServer

    with ViewServer(Answers(runs, sweeps), make_page(title), port) as server:
        screen = "#overview?runs=all" if select_all and len(runs) > 1 else ""
        print_text(f"{server.url}{screen}\nstop with Ctrl-C", flush=True)
        # The metrics of a long run take a second to read: the page need not wait for that.
        threading.Thread(target=runs[0].status, daemon=True).start()
        server.serve_forever()
