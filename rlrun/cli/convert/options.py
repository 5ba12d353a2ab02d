"""What `rlrun convert` takes: the arguments and options, and sizes as people write them."""

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

_UNITS = {"": 1} | {unit: 1000**power for power, unit in enumerate("KMGT", 1)}
_UNITS |= {f"{unit}I": 1024**power for power, unit in enumerate("KMGT", 1)}


class Format(StrEnum):
    """Formats of a checkpoint."""

    HF = "hf"
    DCP = "dcp"


class Dtype(StrEnum):
    """Precisions that weights can be cast to."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT32 = "float32"


class Quantise(StrEnum):
    """Kinds of quantisation."""

    BLOCK = "fp8-block"
    CHANNEL = "fp8-channel"
    TENSOR = "fp8-tensor"
    INT4 = "int4-group"
    NONE = "none"


Source = Annotated[
    str, typer.Argument(metavar="SRC", help="A folder, a run, its checkpoints, or a model's id on the hub.")
]
Step = Annotated[
    str | None,
    typer.Option(metavar="N|latest", help="Which of a run's checkpoints; the latest if not given."),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the hub.")]

Origin = Annotated[Format | None, typer.Option("--from", help="SRC's format.")]
Target = Annotated[Format | None, typer.Option("--to", help="DST's format.")]
Model = Annotated[
    Path | None,
    typer.Option(help="Folder with config.json and tokenizer, where SRC does not say which model it is."),
]
Precision = Annotated[
    Dtype | None, typer.Option(help="Precision of the weights. If not given: as in SRC, or its config.")
]
Quantisation = Annotated[
    Quantise | None, typer.Option("--quantize", help="Quantise the weights; none undoes it.")
]
Lora = Annotated[Path | None, typer.Option(help="Folder of a LoRA adapter (peft's) to merge.")]
Tie = Annotated[
    bool | None, typer.Option("--tie/--untie", help="Embedding and head share a tensor, or have two.")
]
Optimizer = Annotated[bool, typer.Option("--optimizer", help="Keep the optimizer's state, in DST/optimizer.")]
ShardSize = Annotated[str, typer.Option(metavar="SIZE", help="Largest size of a file.")]
Memory = Annotated[str, typer.Option(metavar="SIZE", help="Memory to stay within, whatever the model.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=64, help="Threads. If not given: one a core, at most 8.")
]
AllowMissing = Annotated[
    bool, typer.Option("--allow-missing", help="SRC may lack tensors that its config asks for.")
]
DropUnknown = Annotated[
    bool, typer.Option("--drop-unknown", help="Leave tensors behind that its config knows nothing of.")
]
Verify = Annotated[bool, typer.Option("--verify", help="Read DST back and compare every byte.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]
Push = Annotated[str | None, typer.Option(metavar="ID", help="Upload DST as this model on the hub.")]


def parse_bytes(text: str) -> int:
    """`"5GB"`, `"500M"`, `"4GiB"`, `"1000"` -> bytes. ValueError for anything else."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]I?)?B?", text.strip().upper())
    if not match or not (size := int(float(match[1]) * _UNITS[match[2] or ""])):
        raise ValueError(f"{text!r} is no size: write it as in 5GB, 500MB or 4GiB")
    return size
