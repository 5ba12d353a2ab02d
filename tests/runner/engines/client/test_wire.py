"""Requests and answers on the wire; experts on it, and on their way to the trainer."""

import json
from base64 import b64encode

import numpy as np
import pytest

from rlrun.plugins.generation import Trajectory
from rlrun.plugins.types import Group, Prompt, Row
from rlrun.runner.batches.sequences import to_sequences
from rlrun.runner.contracts.carriers import GenerateRequest, Generation, Sampling
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.engines.client.parsing import ModelLimits, parse_generations, parse_sample
from rlrun.runner.engines.client.wire import generate_body, sample_body
from rlrun.runner.rollouts.grouping import groups_of

PROMPT = np.array([5, 6, 7], np.int32)
REQUEST = GenerateRequest("r", PROMPT, (1,), Sampling(max_new_tokens=4))


def answer(experts: np.ndarray) -> bytes:
    """As SGLang 0.5.23 gives it: base64 of int32 `[prompt + response - 1, layers, K]`."""
    meta = {
        "id": "r-0",
        "finish_reason": {"type": "stop", "matched": 1},
        "prompt_tokens": 3,
        "weight_version": "4",
        "output_token_logprobs": [[-0.5, 8, None], [-0.25, 1, None]],
        "routed_experts": b64encode(experts.astype(np.int32).tobytes()).decode(),
    }
    return json.dumps([{"output_ids": [8, 1], "meta_info": meta}]).encode()


def test_experts_are_asked_for_and_parsed() -> None:
    assert json.loads(generate_body([REQUEST], experts=True))["return_routed_experts"] is True
    assert "return_routed_experts" not in json.loads(generate_body([REQUEST]))
    experts = np.arange(4 * 2 * 3).reshape(4, 2, 3)
    [[made]] = parse_generations(answer(experts), [REQUEST], ModelLimits(experts=24))
    assert made.experts is not None
    assert made.experts.dtype == np.int16
    np.testing.assert_array_equal(made.experts, experts.reshape(4, 6))


def test_experts_of_other_tokens_are_an_engine_error() -> None:
    with pytest.raises(EngineError, match="experts of 15 numbers for 4 tokens"):
        parse_generations(answer(np.zeros((5, 3))), [REQUEST], ModelLimits(experts=24))


def test_samples_asked_for_one_by_one_are_those_of_the_whole_request() -> None:
    many = GenerateRequest("r", PROMPT, (3, 5), Sampling(max_new_tokens=4, stop_token_ids=(1,)))
    whole = json.loads(generate_body([many]))
    for number in range(2):
        one = json.loads(sample_body(many, number))
        assert {key: [value] for key, value in one.items() if key != "return_logprob"} == {
            key: [whole[key][number]] for key in ("input_ids", "sampling_params", "rid")
        }
    [alone] = json.loads(answer(np.zeros((4, 3))))
    del alone["meta_info"]["routed_experts"]
    assert parse_sample(json.dumps(alone).encode(), REQUEST, 0).tokens.tolist() == [8, 1]
    with pytest.raises(EngineError, match="one sample was asked for"):
        parse_sample(answer(np.zeros((4, 3))), REQUEST, 0)


class Chat:
    """A tokenizer whose texts are all empty."""

    def decode_batch(self, batch: list[np.ndarray]) -> list[str]:
        return ["" for _ in batch]


def test_experts_of_the_last_answer_are_those_of_the_sample() -> None:
    def made(tokens: int, rows: int) -> Generation:
        experts = np.full((rows, 6), rows, np.int16)
        return Generation(
            np.ones(tokens, np.int32), np.zeros(tokens, np.float32), "stop", (), experts=experts
        )

    trajectory = Trajectory(PROMPT)
    trajectory.add(made(2, rows=4))
    trajectory.give([9, 9])
    trajectory.add(made(1, rows=7))
    groups: list[Group] = groups_of([Prompt(Row("0", ""), 0, PROMPT)], [[[trajectory]]], Chat())  # type: ignore[arg-type]
    [sequence] = to_sequences(groups)
    assert sequence.experts is not None
    assert sequence.experts.shape == (8, 6)
    assert (sequence.experts[:7] == 7).all()
    assert (sequence.experts[7] == -1).all()
