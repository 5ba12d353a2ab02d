"""The options of `rlrun plan`."""

from typing import Annotated

import typer

Gpu = Annotated[
    str | None,
    typer.Option(help="GPU to plan for, as in H100-80GB. Default: this host's GPU, or else H100-80GB."),
]
PromptTokens = Annotated[
    float | None, typer.Option(min=1, help="Mean length of prompts. Default: a quarter of the longest.")
]
ResponseTokens = Annotated[
    float | None, typer.Option(min=1, help="Mean length of responses. Default: half of the longest.")
]
Sweep = Annotated[bool, typer.Option("--sweep", help="Compare all layouts on these GPUs, fastest first.")]
Simulate = Annotated[
    bool,
    typer.Option("--simulate", help="Simulate a few steps for the best layout of each split of the GPUs."),
]
Spread = Annotated[
    float,
    typer.Option(min=0, help="Standard deviation of response lengths over their mean, for --simulate."),
]
Deep = Annotated[
    bool,
    typer.Option("--deep", help="Trace the memory of one trainer rank, with the trainer's own model."),
]
Rank = Annotated[
    int | None,
    typer.Option(min=0, help="Rank that --deep traces. Default: 0, which holds the most in a pipeline."),
]
Price = Annotated[
    float | None, typer.Option(min=0, help="Price per GPU-hour; also show the price of the job.")
]
