"""Arguments of speculative decoding, resolved by the real SGLang."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from rlrun.runner.engines.process.command_line import options
from rlrun.specs.derived.sglang_arguments import flag_name
from rlrun.specs.rules.engines.speculation import sglang_speculation, verified_tokens
from rlrun.specs.sections.engine import EngineSpec
from tests.sglang_cpu.servers import ARGUMENTS, ENVIRONMENT, python
from tests.tiny_models import make_tiny_model

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
        timeout=300,
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
