"""A teacher's most probable tokens, served by a native engine: the answers, and what is refused."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.contracts.errors import BadAnswer
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.parsing import ModelLimits, parse_top_scores
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.engines.pool.served_model import LEAST_REMAINDER, ServedModel, with_rest
from rlrun.specs.needs import LEAST_REST
from tests.tiny_models import make_tiny_model

NAMES: Any = ["log_probs", "top_ids", "top_log_probs"]
VOCABULARY = 320


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("teacher") / "model", scale=0.1)


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    setup = EngineSetup(
        model_folder=str(folder),
        job="teacher",
        dtype="float32",
        max_running=4,
        max_length=512,
        threads=1,
        seed=0,
        device="cpu",
    )
    server = NativeServer(setup)
    yield server.start()
    server.stop()


@pytest.fixture
async def pool(folder: Path, url: str) -> AsyncIterator[EnginePool]:
    limits = ModelLimits.of(json.loads((folder / "config.json").read_text()))
    pool = EnginePool([EngineClient(url, own=True, limits=limits)])
    yield pool
    await pool.close()


def sequences(count: int = 20) -> list[TrainSequence]:
    rng = np.random.default_rng(0)
    result = []
    for number in range(count):
        prompt, response = int(rng.integers(1, 20)), int(rng.integers(0 if number else 1, 30))
        tokens = rng.integers(0, VOCABULARY, prompt + response).astype(np.int32)
        zeros = np.zeros(response, np.float32)
        result.append(TrainSequence(tokens, prompt, zeros + 1, zeros, zeros, str(number)))
    return result


@pytest.mark.parametrize("num_top", [8, VOCABULARY], ids=["some", "all"])
async def test_the_outcomes_are_those_of_transformers(pool: EnginePool, folder: Path, num_top: int) -> None:
    found = await ServedModel(pool, num_top=num_top, vocabulary=VOCABULARY).outputs(NAMES, sequences())
    plain = await ServedModel(pool).log_probs(sequences())
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).double()
    for number, one in enumerate(sequences()):
        np.testing.assert_allclose(found["log_probs"][number], plain[number], atol=1e-6)
        with torch.no_grad():
            logits = network(input_ids=torch.from_numpy(one.tokens.astype(np.int64))[None]).logits[0]
        everything = logits[one.prompt_length - 1 : -1].log_softmax(-1)
        ids = torch.from_numpy(found["top_ids"][number].astype(np.int64))
        assert ids.shape == (len(one.loss_mask), num_top)
        outcomes = found["top_log_probs"][number]
        np.testing.assert_allclose(outcomes[:, :-1], everything.topk(num_top).values, atol=1e-4)
        np.testing.assert_allclose(outcomes[:, :-1], everything.gather(1, ids), atol=1e-4)
        if num_top == VOCABULARY:
            assert (outcomes[:, -1] == LEAST_REST).all()
        else:
            rest = everything.scatter(1, ids, -torch.inf).logsumexp(1)
            np.testing.assert_allclose(outcomes[:, -1], rest, atol=1e-4)


async def test_a_token_that_the_policy_lacks_is_an_error(pool: EnginePool) -> None:
    with pytest.raises(ValueError, match="the policy has 300 tokens: lower top_k"):
        await ServedModel(pool, num_top=VOCABULARY, vocabulary=300).outputs(NAMES, sequences(2))


async def test_requests_that_ask_for_top_tokens_wrongly_are_refused(pool: EnginePool) -> None:
    scored = {"sampling_params": {"max_new_tokens": 0}, "return_logprob": True, "logprob_start_len": 0}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"top_logprobs_num": -1}, "top_logprobs_num -1 is not a whole number"),
        ({"top_logprobs_num": "2"}, "top_logprobs_num: expected one int"),
        ({"top_logprobs_num": True}, "top_logprobs_num: expected one int"),
        ({"logprob_start_len": 3}, "logprob_start_len 3 of a prompt of 3 tokens"),
        ({"top_logprobs_num": 2, "sampling_params": {"max_new_tokens": 2}}, "for prompts that are scored"),
    ]
    async with aiohttp.ClientSession() as session:
        for changes, problem in cases:
            body = {"input_ids": [5, 6, 7]} | scored | changes
            async with session.post(pool.slots[0].client.url + "/generate", json=body) as answer:
                assert answer.status == 400 and problem in await answer.text(), problem


def answer(**changes: Any) -> bytes:
    meta = {
        "input_token_logprobs": [[None, 5, None], [-0.5, 6, None], [-1.5, 7, None]],
        "input_top_logprobs": [None, [[-0.5, 6, None], [-2.0, 1, None]], [[-0.9, 2, None], [-1.5, 7, None]]],
    }
    return json.dumps([{"meta_info": meta | changes}]).encode()


def parse(raw: bytes) -> Any:
    tokens = np.array([4, 5, 6, 7], np.int32)
    return parse_top_scores(raw, [tokens], [1], 2, ModelLimits.of({"vocab_size": 10}))


def test_an_answer_is_read() -> None:
    [scores] = parse(answer())
    assert scores.log_probs.tolist() == [-0.5, -1.5]
    assert scores.top_ids.tolist() == [[6, 1], [2, 7]]
    np.testing.assert_allclose(scores.top_log_probs, [[-0.5, -2.0], [-0.9, -1.5]])


ROW = [[-0.5, 6, None], [-2.0, 1, None]]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (None, "no most probable tokens for each of the 3 tokens"),
        ([None, ROW], "no most probable tokens for each of the 3 tokens"),
        ([None, ROW, ROW[:1]], "1 most probable tokens at 2 of sequence 0 instead of 2"),
        ([None, ROW, 7], "7 most probable tokens at 2"),
        ([None, ROW, [[-0.5, 6, None], [-2.0, 10, None]]], "token id 10 .* below 10"),
        ([None, ROW, [[-0.5, 6, None], [-2.0, -1, None]]], "token id -1"),
        ([None, ROW, [[-0.5, 6, None], [-2.0, 6, None]]], "twice at one position"),
        ([None, ROW, [[-0.1, 6, None], [-0.2, 1, None]]], "probabilities sum to 1.72"),
        ([None, ROW, [[0.5, 6, None], [-2.0, 1, None]]], "log-prob 0.5"),
        ([None, ROW, [[None, 6, None], [-2.0, 1, None]]], "log-prob null"),
        ([None, ROW, [7, 8]], "not lists of log-prob"),
    ],
)
def test_a_wrong_answer_is_refused(rows: Any, problem: str) -> None:
    with pytest.raises(BadAnswer, match=problem):
        parse(answer(input_top_logprobs=rows))


def test_what_remains_is_never_less_than_float32_can_tell() -> None:
    top = np.log(np.array([[0.5, 0.25], [0.7, 0.3]], np.float32))
    outcomes = with_rest(top, whole=False)
    np.testing.assert_allclose(outcomes[:, -1], np.log([0.25, LEAST_REMAINDER]), rtol=1e-5)
    assert with_rest(top, whole=True)[:, -1].tolist() == [LEAST_REST, LEAST_REST]
