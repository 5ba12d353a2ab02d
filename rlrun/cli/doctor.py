"""`rlrun doctor`: checks whether this host can run jobs, and says how to fix what is wrong."""

import json
from dataclasses import asdict
from pathlib import Path

import typer

from rlrun.cli.arguments import AsJson, RunsDir

_SIGNS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "bad": ("BAD ", "bold red")}


def command(runs_dir: RunsDir = Path("runs"), as_json: AsJson = False) -> None:
    """Check whether this host can run jobs.

    Checks Python, packages, GPUs, disk, shared memory and ports. The exit code is 2 if something is wrong.
    """
    from rich.console import Console
    from rich.text import Text

    from rlrun.runner.doctor.host import examine_host

    console = Console(highlight=False, soft_wrap=True)
    checks = []
    for check in examine_host(runs_dir):
        checks.append(check)
        if not as_json:
            sign, style = _SIGNS[check.verdict]
            cure = f"  -> {check.cure}" if check.cure else ""
            console.print(Text.assemble((sign, style), f"  {check.subject:14}  {check.found}", (cure, "dim")))
    if as_json:
        print(json.dumps([asdict(check) for check in checks]))
    raise typer.Exit(2 if any(check.verdict == "bad" for check in checks) else 0)
