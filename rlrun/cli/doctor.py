"""`rlrun doctor`: checks whether this host can run jobs, and says how to fix what is wrong."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun.cli.arguments import AsJson, RunsDir

if TYPE_CHECKING:
    from rlrun.runner.doctor.check import Check

_SIGNS = {"ok": ("ok  ", "green"), "note": ("note", "yellow"), "bad": ("BAD ", "bold red")}
Gpu = Annotated[
    bool,
    typer.Option("--gpu", help="Examine the GPUs instead: a few minutes, while no job uses them."),
]
SglangPython = Annotated[
    str | None,
    typer.Option("--sglang-python", metavar="PATH", help="With --gpu: the interpreter that has SGLang."),
]


def command(
    runs_dir: RunsDir = Path("runs"),
    as_json: AsJson = False,
    gpu: Gpu = False,
    sglang_python: SglangPython = None,
) -> None:
    """Check whether this host can run jobs.

    Checks Python, packages, GPUs, disk, shared memory and ports. With --gpu: the driver, each GPU's speed,
    access between GPUs, CUDA IPC, NCCL, and whether an SGLang server starts. The exit code is 2 if something
    is wrong.
    """
    from rich.text import Text

    from rlrun.runner.host.rich_console import SafeConsole

    console = SafeConsole(soft_wrap=True)
    checks = []
    for check in _checks(runs_dir, gpu, sglang_python):
        checks.append(check)
        if not as_json:
            sign, style = _SIGNS[check.verdict]
            cure = f"  -> {check.cure}" if check.cure else ""
            console.print(Text.assemble((sign, style), f"  {check.subject:14}  {check.found}", (cure, "dim")))
    if as_json:
        print(json.dumps([asdict(check) for check in checks]))
    raise typer.Exit(2 if any(check.verdict == "bad" for check in checks) else 0)


def _checks(runs_dir: Path, gpu: bool, sglang_python: str | None) -> "Iterator[Check]":
    if sglang_python is not None and not gpu:
        raise ValueError("--sglang-python needs --gpu, whose checks start a server")
    if gpu:
        from rlrun.runner.doctor.gpu import examine_gpus

        return examine_gpus(sglang_python)
    from rlrun.runner.doctor.host import examine_host

    return examine_host(runs_dir)
