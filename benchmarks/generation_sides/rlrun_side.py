"""The native engine as jobs use it: through its client, with a seed for each sample, and log-probs."""

import asyncio
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rounds import Generate, Prompts, run_rounds

from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer


def start(folder: Path, settings: dict[str, Any]) -> Generate:
    """Starts a server in this process."""
    torch.set_num_threads(settings["threads"])
    setup = EngineSetup(
        str(folder), dtype=settings["dtype"], max_length=settings["length"], threads=settings["threads"]
    )
    url, numbers = NativeServer(setup).start(), count()

    async def generate(prompts: Prompts, budgets: list[int]) -> int:
        async with EngineClient(url, own=True) as client:
            requests = [
                GenerateRequest(
                    f"{next(numbers)}", np.array(prompt, np.int32), (k,), Sampling(max_new_tokens=budget)
                )
                for k, (prompt, budget) in enumerate(zip(prompts, budgets, strict=True))
            ]
            answers = await client.generate_batch(requests)
        return sum(len(generation.tokens) for answer in answers for generation in answer)

    return lambda prompts, budgets: asyncio.run(generate(prompts, budgets))


if __name__ == "__main__":
    run_rounds(start)
