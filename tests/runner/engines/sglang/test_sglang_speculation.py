"""Speculative decoding of real SGLang servers: arguments and counts."""

import json
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from rlrun.runner.contracts.carriers import GenerateRequest, Generation, Sampling
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.process.command_line import options
from rlrun.runner.engines.sglang.server import SglangServer
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.derived.speculation import sglang_speculation, verified_tokens
from rlrun.specs.sections.engine import EngineSpec
from tests.sglang_cpu.log_probs import largest_difference
from tests.sglang_cpu.servers import ARGUMENTS, ENVIRONMENT, python, tiny_setup
from tests.tiny_models import make_tiny_model
from tests.waiting import PATIENCE

PROMPT = np.arange(5, 25, dtype=np.int32)
RESOLVE = """
import json, sys
from sglang.srt.server_args import prepare_server_args
for line in sys.stdin:
    args = prepare_server_args(json.loads(line))
    args.resolve_once()
    values, names = args.resolved_dict(), ("algorithm", "num_steps", "eagle_topk", "num_draft_tokens")
    print("RESOLVED", json.dumps([values[f"speculative_{name}"] for name in names]), flush=True)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two tiny models of one shape."""
    root = tmp_path_factory.mktemp("models")
    return [make_tiny_model(root / str(seed), seed=seed, vocab=4160) for seed in range(2)]


@pytest.mark.slow  # imports all of SGLang for a table that changes with its version
def test_servers_read_the_arguments_as_they_are_meant(models: list[Path]) -> None:
    """The real package resolves them: SGLang refuses a number of tokens without one of steps."""
    draft = {"draft_model": str(models[1])}
    cases = [
        ({"algorithm": "ngram"}, {}),
        ({"algorithm": "ngram", "draft_tokens": 7}, {}),
        ({"algorithm": "standalone", **draft}, {}),
        ({"algorithm": "eagle3", "draft_tokens": 5, **draft}, {}),
        ({"algorithm": "eagle", **draft}, {}),
        ({"algorithm": "mtp", "draft_tokens": 3}, {}),
        (
            {"algorithm": "eagle3", "draft_tokens": 7, **draft},
            {"speculative_num_steps": 5, "speculative_eagle_topk": 4},
        ),
    ]
    sections = [
        EngineSpec.model_validate({"type": "sglang", "speculative": speculative, "sglang": own})
        for speculative, own in cases
    ]
    lines = []
    for section in sections:
        given = ARGUMENTS | {"model_path": str(models[0]), "device": "cpu"}
        given |= sglang_speculation(section) | section.sglang
        lines.append(json.dumps(options({flag_name(name): value for name, value in given.items()})))
    answer = subprocess.run(
        [python(), "-c", RESOLVE],
        input="\n".join(lines),
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    resolved = [json.loads(line[9:]) for line in answer.stdout.splitlines() if line.startswith("RESOLVED ")]
    assert len(resolved) == len(cases), answer.stderr[-2000:]
    chain = 1
    assert [(algorithm, tokens) for algorithm, _, _, tokens in resolved] == [
        ("NGRAM", 12),
        ("NGRAM", 8),
        ("STANDALONE", 4),
        ("EAGLE3", 6),
        ("EAGLE", 4),
        ("EAGLE", 4),
        ("EAGLE3", 8),
    ]
    assert [(steps, topk) for _, steps, topk, _ in resolved[2:]] == [
        (3, chain),
        (5, chain),
        (3, chain),
        (3, chain),
        (5, 4),
    ]
    assert [verified_tokens(section, "qwen3") for section in sections] == [row[3] for row in resolved]


@asynccontextmanager
async def serving(folder: Path, model: Path, section: EngineSpec) -> AsyncIterator[EngineClient]:
    """A server that speculates as the section says."""
    arguments = ARGUMENTS | {"attention_backend": "intel_amx"} | sglang_speculation(section)
    server = SglangServer(tiny_setup(folder, model, arguments=arguments))
    server.start()
    try:
        async with EngineClient(server.url, 120, 60, api_key="sesame") as client:
            yield client
    finally:
        server.stop()


async def answers(client: EngineClient) -> list[Generation]:
    """The likeliest tokens, which repeat themselves after a random model's first ones."""
    request = GenerateRequest("r", PROMPT, (1, 2), Sampling(40, temperature=0.0))
    return await client.generate(request)


async def test_texts_that_guess_change_no_token(models: list[Path], tmp_path: Path) -> None:
    section = EngineSpec.model_validate({"speculative": {"algorithm": "ngram", "draft_tokens": 7}})
    async with serving(tmp_path, models[0], section) as client:
        first, again = await answers(client), await answers(client)
    assert largest_difference(models[0], PROMPT, [*first, *again]) < 1e-4
    for sample in (*first, *again):
        assert sample.drafted == 7 * sample.passes
        assert len(sample.tokens) <= 1 + sample.passes + sample.accepted
    # The second time the texts are known.
    assert [sample.tokens.tolist() for sample in again] == [sample.tokens.tolist() for sample in first]
    assert all(sample.accepted > len(sample.tokens) / 2 > sample.passes for sample in again)
