"""`rlrun init`: a commented spec to start from."""

from pathlib import Path
from string import Template
from typing import Annotated

import typer

_STARTER = Path(__file__).parent / "starter.toml"


def command(
    path: Annotated[Path, typer.Argument(help="The file to write; one that exists is left alone.")] = Path(
        "job.toml"
    ),
    model: Annotated[str, typer.Option(help="HF id or folder of the model to train.")] = "Qwen/Qwen3-0.6B",
    task: Annotated[str, typer.Option(help="Task of reasoning-gym to learn.")] = "chain_sum",
    gpus: Annotated[int, typer.Option(help="GPUs of this host to use; 0 runs on CPU.", min=0)] = 0,
) -> None:
    """Write a spec that is complete and valid, each setting explained."""
    for value in (model, task):
        if '"' in value or "\\" in value or not value.isprintable():
            raise ValueError(f"{value!r} cannot stand in a TOML string")
    values = {"name": path.stem, "model": model, "task": task, "gpus": gpus, "fsdp": max(gpus, 1)}
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(Template(_STARTER.read_text("utf-8")).substitute(values))
    except FileExistsError:
        raise ValueError(f"{path} is there already; choose another name: rlrun init NAME.toml") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None
    print(f"wrote {path}; next: rlrun validate {path}, rlrun plan {path}, rlrun launch {path}")
