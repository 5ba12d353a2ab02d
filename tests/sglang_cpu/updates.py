"""What every kind of model has to show on a real server whose weights are updated."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.pool import EnginePool
from tests.sglang_cpu.log_probs import largest_difference
from tests.sglang_cpu.policies import LocalPolicy

PROMPT = np.arange(5, 45, dtype=np.int32)


async def check_every_update(client: EngineClient, policy: LocalPolicy, folders: Sequence[Path]) -> None:
    """Log-probs are those of the model after every update, also of a sample that continues another."""
    request = GenerateRequest("r", PROMPT, (1, 2), Sampling(max_new_tokens=12, stop_token_ids=(1,)))
    pool = EnginePool([client])
    for version, folder in enumerate(folders):
        if version:
            await pool.update_weights(policy.write(folder, version))
        samples = await client.generate(replace(request, id=f"r{version}"))
        assert largest_difference(folder, PROMPT, samples) < 1e-4
        longer = np.concatenate([PROMPT, samples[0].tokens])
        again = replace(request, id=f"c{version}", tokens=longer, seeds=(3,))
        [continued] = await client.generate(again)
        assert largest_difference(folder, longer, [continued]) < 1e-4
        assert [span.version for span in continued.versions] == [version]
