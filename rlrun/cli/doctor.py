"""`rlrun doctor`: whether this host can run jobs, each line with a cure."""

import json
from dataclasses import asdict
from pathlib import Path

import typer

from rlrun.cli.arguments import AsJson, RunsDir

_SIGNS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "bad": ("BAD ", "bold red")}


def command(runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Say what on this host would keep jobs from running.

    Python, packages, GPUs, disk, shared memory and ports; exit code 2 where something is wrong.
    """
    from rich.console import Console
    from rich.text import Text

    from rlrun.runner.planning.doctor import examine_host

    console = Console(highlight=False, soft_wrap=True)
    found = []
    for check in examine_host(runs_dir):
        found.append(check)
        if not as_json:
            sign, style = _SIGNS[check.verdict]
            cure = f"  -> {check.cure}" if check.cure else ""
            console.print(Text.assemble((sign, style), f"  {check.subject:14}  {check.found}", (cure, "dim")))
    if as_json:
        print(json.dumps([asdict(check) for check in found]))
    raise typer.Exit(2 if any(check.verdict == "bad" for check in found) else 0)
