"""What `rlrun plan` advises where models that people train do not fit: followed word by word."""

import json
from pathlib import Path

import pytest

from tests.cli.cli_outcome import Command, Outcome
from tests.data.published_models import TRAINED_OFTEN

SPEC = """
[model]
path = "."
[data]
path = "rows.jsonl"
[rollout]
batch_size = 128
samples_per_prompt = 8
max_prompt_tokens = 1024
max_response_tokens = 7168
[[rewards]]
type = "math"
[trainer]
steps = 100
[trainer.parallel]
fsdp = {gpus}
{more}
[engine]
type = "sglang"
[cluster]
nodes = {nodes}
gpus_per_node = {per_node}
"""
CHECKPOINTED = 'trainer.activation_checkpointing = "full"'
JOBS: list[tuple[str, str, int, str, str]] = [
    ("Qwen3-0.6B", "RTX 4090", 1, "", CHECKPOINTED),
    ("Qwen3-4B", "RTX 4090", 1, "[trainer.lora]\nrank = 16", CHECKPOINTED),
    ("Qwen3-8B", "H100", 1, "", 'trainer.offload = "all"'),
    ("Qwen3-8B", "H100", 4, "", CHECKPOINTED),
    ("Qwen3-14B", "A100-80GB", 8, "", CHECKPOINTED),
    ("Qwen3-30B-A3B", "H100", 8, "", f"engine.tensor = 4 and {CHECKPOINTED}"),
    ("Qwen3-32B", "H100", 16, "", f"engine.tensor = 2 and {CHECKPOINTED}"),
    ("Llama-3.3-70B", "H100", 32, "", f"engine.tensor = 4 and {CHECKPOINTED}"),
    (
        "Qwen3-235B-A22B",
        "H100",
        64,
        "",
        f'engine.tensor = 8 and {CHECKPOINTED} and trainer.offload = "all"',
    ),
]


@pytest.mark.parametrize("job", JOBS, ids=[f"{model} on {gpus} {gpu}" for model, gpu, gpus, *_ in JOBS])
def test_a_plan_that_does_not_fit_says_what_to_set_and_then_fits(
    rlrun: Command, tmp_path: Path, job: tuple[str, str, int, str, str]
) -> None:
    model, gpu, gpus, more, advised = job
    (tmp_path / "config.json").write_text(json.dumps(TRAINED_OFTEN[model]))
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1 + 1?", "label": "2"}\n' * 128)
    spec = tmp_path / "spec.toml"
    per_node = min(gpus, 8)
    spec.write_text(SPEC.format(gpus=gpus, more=more, nodes=gpus // per_node, per_node=per_node))
    before = rlrun("plan", spec, "--gpu", gpu)
    assert any(" needs " in line for line in warnings(before))
    [advice] = [line for line in warnings(before) if "to fit, " in line]
    settings = advice.removeprefix("warning: to fit, set ").partition(": then ")[0]
    assert settings == advised
    options = [f"--set={setting.replace(' = ', '=')}" for setting in settings.split(" and ")]
    after = rlrun("plan", spec, "--gpu", gpu, *options)
    assert not [line for line in warnings(after) if " needs " in line or "to fit" in line]


def warnings(plan: Outcome) -> list[str]:
    """The lines of a plan that warn."""
    assert plan.code == 0
    return [line for line in (plan.out + plan.err).splitlines() if line.startswith("warning: ")]
