"""Sampling settings from the spec to the engine: nothing is lost, and evaluations have their own values."""

from dataclasses import fields

import numpy as np
import orjson
import pytest

from rlrun.plugins.generation import Sampling
from rlrun.runner.contracts.carriers import GenerateRequest, RequestOptions
from rlrun.runner.engines.client.wire import generate_body, sample_body
from rlrun.runner.engines.native.http.protocol import parse_generate_request
from rlrun.runner.rollouts.settings import rollout_settings
from rlrun.specs.sections.evaluation import EvalDatasetSpec
from rlrun.specs.sections.rollout import RolloutSpec

ROLLOUT = RolloutSpec(
    max_prompt_tokens=20,
    max_response_tokens=40,
    min_response_tokens=3,
    max_turn_tokens=30,
    temperature=0.7,
    top_p=0.9,
    top_k=5,
    stop=("x",),
    stop_token_ids=(9,),
    sampling_mask=True,
)
DATASET = EvalDatasetSpec(
    name="held-out",
    path="rows.jsonl",
    samples_per_prompt=2,
    temperature=0.0,
    top_p=1.0,
    max_prompt_tokens=30,
    max_response_tokens=24,
    top_k=7,
    min_response_tokens=2,
    stop=("y",),
    stop_token_ids=(8,),
)
NOT_DEFAULT = Sampling(40, 0.7, 0.9, 5, 3, ("x",), (9,))


def test_training_samples_as_the_spec_says() -> None:
    settings = rollout_settings(ROLLOUT)
    assert settings.sampling == NOT_DEFAULT
    assert (settings.samples, settings.max_sample_tokens, settings.max_turn_tokens) == (8, 60, 30)
    assert settings.options.return_sampling_mask


def test_an_evaluation_has_its_own_settings_and_those_of_rollout() -> None:
    settings = rollout_settings(ROLLOUT, DATASET)
    assert settings.sampling == Sampling(24, 0.0, 1.0, 7, 2, ("y",), (8,))
    assert (settings.purpose, settings.samples) == ("eval-held-out", 2)
    assert (settings.max_sample_tokens, settings.max_turn_tokens) == (54, 24)
    assert not settings.options.return_sampling_mask


@pytest.mark.parametrize("sampling", [NOT_DEFAULT, Sampling(7)])
def test_the_native_engine_reads_every_setting_that_the_client_sends(sampling: Sampling) -> None:
    options = RequestOptions(sampling.cuts_vocabulary, True, logprob_start_len=1, top_logprobs_num=2)
    request = GenerateRequest("r", np.array([5, 6], np.int32), (1,), sampling, options=options)
    for body in (generate_body([request]), sample_body(request, 0)):
        [sample], _ = parse_generate_request(orjson.loads(body), str, int)
        names = [field.name for field in fields(Sampling)]
        assert [getattr(sample.params, name) for name in names] == [getattr(sampling, name) for name in names]
        assert sample.options == options


def test_masks_are_asked_for_only_where_the_vocabulary_is_cut() -> None:
    settings = rollout_settings(ROLLOUT)
    assert settings.options_for(NOT_DEFAULT).return_sampling_mask
    assert not settings.options_for(Sampling(7)).return_sampling_mask


@pytest.mark.parametrize(
    ("room", "limits"), [(50, (40, 3)), (40, (40, 3)), (10, (10, 3)), (2, (2, 2)), (0, (0, 0))]
)
def test_a_minimum_is_never_above_the_limit(room: int, limits: tuple[int, int]) -> None:
    limited = NOT_DEFAULT.limited(room)
    assert (limited.max_new_tokens, limited.min_new_tokens) == limits


@pytest.mark.parametrize(("num_tokens", "limits"), [(0, (40, 3)), (2, (38, 1)), (30, (10, 0))])
def test_the_rest_of_an_answer_has_the_rest_of_its_limits(num_tokens: int, limits: tuple[int, int]) -> None:
    rest = NOT_DEFAULT.after(num_tokens)
    assert (rest.max_new_tokens, rest.min_new_tokens) == limits
