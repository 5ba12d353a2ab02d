"""Families that the native engine computes by transformers' layers, against transformers, in float32."""

import threading
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForImageTextToText

from rlrun.models.families.by_transformers import TEXT_FAMILIES
from rlrun.runner.contracts.carriers import RequestOptions
from rlrun.runner.engines.native.engine.engine import Engine
from rlrun.runner.engines.native.engine.loading import load
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.model.config import weight_shapes
from rlrun.runner.weights.carriers.disk.reader import FolderModel
from tests.runner.engines.engine_cases import new_sample, random_prompts, run
from tests.runner.engines.native.test_native_parity import (
    assert_like_transformers,
    generate_like_transformers,
)
from tests.runner.trainer.model.test_transformers_decoder import make_tiny_multimodal
from tests.tiny_models import FOREIGN, make_tiny_model

LONGROPE: dict[str, Any] = {
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 100.0,
        "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5, 3.1, 3.8],
        "long_factor": [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        "factor": 8.0,
        "original_max_position_embeddings": 64,
    },
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("family", [*FOREIGN, "gpt_oss"])
def test_log_probs_and_greedy_tokens_equal_transformers(family: str, tmp_path: Path) -> None:
    generate_like_transformers(make_tiny_model(tmp_path, family, scale=0.1, pad_token_id=None))


@pytest.mark.parametrize("family", ["gemma3_text", "mixtral"])
def test_samples_that_lose_their_cache_go_on_as_if_they_had_kept_it(family: str, tmp_path: Path) -> None:
    """The cache has room for less than the samples need."""
    folder = make_tiny_model(tmp_path, family, scale=0.1, pad_token_id=None)
    setup = EngineSetup(str(folder), dtype="float32", max_running=8, max_cache_tokens=200, max_length=150)
    samples = [
        new_sample(prompt, temperature=0.0, max_new_tokens=60, ignore_eos=True)
        for prompt in random_prompts(8, shortest=20)
    ]
    run(load(setup).scheduler, samples)
    assert sum(sample.retractions for sample in samples) > 0
    assert_like_transformers(samples, folder)


@pytest.mark.parametrize("family", ["gemma3_text", "mixtral"])
def test_new_weights_are_those_of_the_next_token(family: str, tmp_path: Path) -> None:
    """By a folder: mixtral's matrices of gate and up are apart in the files, so their stacks are copies."""
    old = make_tiny_model(tmp_path / "old", family, scale=0.1, pad_token_id=None)
    new = make_tiny_model(tmp_path / "new", family, scale=0.1, seed=1, pad_token_id=None)
    setup = EngineSetup(str(old), dtype="float32", weight_folders=(str(new),))
    engine = Engine(load(setup))
    engine.start()
    try:
        engine.release(["weights"]).result()
        network = engine._scheduler.model._layers._network
        assert sum(parameter.numel() for parameter in network.model.parameters()) == 0
        engine.load(FolderModel(weight_shapes(engine.loaded.architecture), str(new), 7)).result()
        samples = [new_sample(prompt, max_new_tokens=9, ignore_eos=True) for prompt in random_prompts(3)]
        ended = threading.Semaphore(0)
        for sample in samples:
            sample.on_done = lambda _: ended.release()
        engine.submit(samples)
        for _ in samples:
            ended.acquire()
    finally:
        engine.stop()
    assert engine.version == 7
    assert_like_transformers(samples, new)


@pytest.mark.parametrize(
    ("family", "fields", "length", "message"),
    [
        pytest.param(
            "phi3",
            LONGROPE,
            65,
            "more than 64 tokens, and this engine's have up to 65",
            id="longrope",
        ),
        pytest.param("gemma4_text", {"final_logit_softcapping": 30.0}, 64, "softcapping", id="caps"),
    ],
)
def test_what_cannot_be_computed_token_by_token_is_refused(
    family: str, fields: dict[str, Any], length: int, message: str, tmp_path: Path
) -> None:
    folder = make_tiny_model(tmp_path, family, pad_token_id=None, **fields)
    with pytest.raises(ValueError, match=message):
        load(EngineSetup(str(folder), dtype="float32", max_length=length))


def test_longrope_is_computed_up_to_the_length_of_its_first_frequencies(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "phi3", pad_token_id=None, **LONGROPE)
    loaded = load(EngineSetup(str(folder), dtype="float32", max_length=64))
    prompts = random_prompts(3, longest=40)
    samples = [new_sample(prompt, max_new_tokens=20, ignore_eos=True) for prompt in prompts]
    assert_like_transformers(run(loaded.scheduler, samples), folder)


def test_layers_of_transformers_report_no_experts(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "mixtral", pad_token_id=None)
    sample = new_sample([5, 6])
    sample.options = RequestOptions(return_routed_experts=True)
    with pytest.raises(ValueError, match="return_routed_experts: transformers' layers report none"):
        Engine(load(EngineSetup(str(folder), dtype="float32"))).check(sample)


@pytest.mark.parametrize("family", TEXT_FAMILIES)
def test_the_text_model_of_a_multimodal_checkpoint(family: str, tmp_path: Path) -> None:
    folder = make_tiny_multimodal(tmp_path / "model", family)
    scheduler = load(EngineSetup(str(folder), dtype="float32")).scheduler
    samples = [new_sample(prompt, max_new_tokens=20, ignore_eos=True) for prompt in random_prompts(3)]
    assert_like_transformers(run(scheduler, samples), folder, AutoModelForImageTextToText)
