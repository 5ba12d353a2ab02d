"""The shipped quickstart: its model, its data, and that its policy learns."""

from pathlib import Path

import pytest

from rlrun.plugins.registry import build
from rlrun.plugins.validation import load_checked_spec
from rlrun.runner.prompts.conversations import encode_demonstration
from rlrun.runner.prompts.tokenizer import Tokenizer
from rlrun.specs.paths import RECIPES
from rlrun.specs.sections.data import DataSpec
from rlrun.specs.sections.job import Spec
from tests.integration.jobs import Jobs

MODEL = RECIPES / "quickstart" / "model"
MEGABYTES = 8


@pytest.fixture(scope="module")
def quickstart() -> Spec:
    return load_checked_spec([RECIPES / "quickstart.toml"]).spec


@pytest.fixture(scope="module")
def demonstrations() -> Spec:
    return load_checked_spec([RECIPES / "quickstart-sft.toml"]).spec


def prompts(data: DataSpec, rows: int) -> set[str]:
    """The first prompts of a `[data]` section."""
    source = build("data", data.type, data.params)
    return {source[index].prompt for index in range(rows)}


def test_the_model_is_small_enough_to_ship() -> None:
    assert (MODEL / "model.safetensors").stat().st_size <= MEGABYTES * 1024**2


def test_held_out_prompts_are_not_trained_on(quickstart: Spec, demonstrations: Spec) -> None:
    [dataset] = quickstart.eval.datasets
    held_out = prompts(dataset, dataset.params["size"])
    assert not held_out & prompts(quickstart.data, quickstart.data.params["size"])
    trainer = demonstrations.trainer
    seen = prompts(demonstrations.data, trainer.steps * trainer.global_batch_size)
    assert not held_out & seen


def test_prompts_and_demonstrations_fit_their_limits(quickstart: Spec, demonstrations: Spec) -> None:
    tokenizer = Tokenizer(MODEL)
    source = build("data", demonstrations.data.type, demonstrations.data.params)
    pairs = [encode_demonstration(tokenizer, source[index], True) for index in range(5000)]
    assert max(len(prompt) for prompt, _ in pairs) <= quickstart.rollout.max_prompt_tokens
    assert max(len(response) for _, response in pairs) <= quickstart.rollout.max_response_tokens


@pytest.mark.slow
def test_the_policy_learns(jobs: Jobs) -> None:
    ended = jobs.start("quickstart", spec="quickstart", seed=3).wait()
    assert ended.code == 0, ended.output
    accuracy = [line["eval/held-out/pass@1"] for line in ended.metrics if "eval/held-out/pass@1" in line]
    assert accuracy[-1] >= 0.8
    assert accuracy[-1] - accuracy[0] >= 0.4
    first = next(line for line in ended.metrics if line["step"] == 1)
    assert first["train/approx_kl"] == 0.0
    assert first["train/train_rollout_logprob_abs_diff"] < 1e-4
    assert Path(ended.folder.curve).is_file()
