"""Bad answers of engines, one by one: each is refused, and the message says what is wrong where."""

import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.types import VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest, Generation, RequestOptions, Sampling
from rlrun.runner.contracts.errors import BadAnswer
from rlrun.runner.engines.client.parsing import (
    ModelLimits,
    check_versions,
    max_answer_bytes,
    parse_generations,
    parse_sample,
    parse_scores,
)

PROMPT = np.array([5, 6, 7], np.int32)
REQUEST = GenerateRequest("r", PROMPT, (1, 2), Sampling(max_new_tokens=4))
LIMITS = ModelLimits(vocabulary=100)
NAN_OF_ORJSON = None
GIVEN = {0, 3, 4, 5}


def sample(name: str = "r-0", tokens: tuple[Any, ...] = (8, 9), **meta: Any) -> dict[str, Any]:
    """Returns a sample as SGLang answers it."""
    return {
        "output_ids": list(tokens),
        "meta_info": {
            "id": name,
            "finish_reason": {"type": "stop", "matched": 9},
            "prompt_tokens": 3,
            "cached_tokens": 2,
            "weight_version": "4",
            "weight_versions": [{"version": "4", "start": 0, "end": len(tokens)}],
            "output_token_logprobs": [[-0.5, token, None] for token in tokens],
            **meta,
        },
    }


def without(key: str) -> dict[str, Any]:
    answer = sample()
    del answer["meta_info"][key]
    return answer


def log_probs(*values: Any) -> dict[str, Any]:
    return sample(
        output_token_logprobs=[[value, token, None] for value, token in zip(values, (8, 9), strict=False)]
    )


def spans(*rows: tuple[Any, Any, Any]) -> dict[str, Any]:
    return sample(weight_versions=[{"version": v, "start": s, "end": e} for v, s, e in rows])


def refusal(parse: Callable[[], object]) -> str:
    with pytest.raises(BadAnswer) as caught:
        parse()
    return str(caught.value)


GOOD = {
    "as SGLang answers": sample(),
    "rounded above 0": log_probs(1e-5, -3.0),
    "0 as a whole number": log_probs(0, -3.0),
    "the lowest token id": sample(tokens=(0, 99)),
    "no spans": without("weight_versions"),
    "a server's first version": sample(weight_version="default", weight_versions=None),
    "two versions": spans(("3", 0, 1), ("4", 1, 2)),
    "versions as numbers": spans((3, 0, 1), (4, 1, 2)),
    "an empty span": spans(("3", 0, 0), ("4", 0, 2)),
    "aborted before the first token": sample(
        tokens=(), finish_reason={"type": "abort"}, weight_versions=[], output_token_logprobs=None
    ),
}

BAD = {
    "a positive log-prob": (
        log_probs(-1.0, 0.7),
        "log-prob 0.7 at token 1 of sample r-0; log-probs are at most 0",
    ),
    "a log-prob of -1e30": (log_probs(-1e30, -1.0), "log-prob -1e+30 at token 0 of sample r-0"),
    "NaN, which is null in JSON": (log_probs(-1.0, NAN_OF_ORJSON), "log-prob null at token 1 of sample r-0"),
    "a log-prob as text": (log_probs("-1.0", -1.0), 'log-prob "-1.0" at token 0'),
    "a log-prob that is true": (log_probs(True, True), "log-prob true at token 0"),
    "nested log-probs": (log_probs([-1.0], [-1.0, 2]), "log-prob [-1.0] at token 0"),
    "log-probs alone": (
        sample(output_token_logprobs=[-1.0, -1.0]),
        "not lists of log-prob, token id and text",
    ),
    "pairs of different lengths": (
        sample(output_token_logprobs=[[-1.0, 8], [-1.0, 9, None]]),
        "not lists of log-prob, token id and text",
    ),
    "a log-prob too few": (
        sample(output_token_logprobs=[[-1.0, 8, None]]),
        "a list of 1 as the log-probs of",
    ),
    "no log-probs": (
        without("output_token_logprobs"),
        "a list of 0 as the log-probs of sample r-0, which has 2",
    ),
    "log-probs as a table": (sample(output_token_logprobs={"a": 1}), "as the log-probs of sample r-0"),
    "log-probs of other tokens": (
        sample(output_token_logprobs=[[-1.0, 9, None], [-1.0, 8, None]]),
        "log-probs of other tokens than those of sample r-0",
    ),
    "a negative token id": (sample(tokens=(-1, 9)), "token id -1 at token 0 of sample r-0"),
    "a token id beyond the vocabulary": (sample(tokens=(8, 100)), "ids of this model are below 100"),
    "a token id beyond 64 bits": (sample(tokens=(8, 2**70)), "token id"),
    "a token id beyond 63 bits": (sample(tokens=(8, 2**63)), "token id 9223372036854775808 at token 1"),
    "a token id with a fraction": (sample(tokens=(8, 9.5)), "token id 9.5 at token 1"),
    "a token id as text": (sample(tokens=(8, "9")), 'token id "9" at token 1'),
    "nested token ids": (sample(tokens=([8, 9], [8])), "token id [8, 9] at token 0"),
    "evenly nested token ids": (sample(tokens=([8], [9])), "token id [8] at token 0"),
    "no token ids": ({**sample(), "output_ids": None}, "output_ids null for sample r-0"),
    "token ids as text": ({**sample(), "output_ids": "89"}, 'output_ids "89" for sample r-0'),
    "more tokens than asked for": (
        sample(tokens=(1, 2, 3, 4, 5)),
        "5 tokens for sample r-0, although at most 4",
    ),
    "no token": (
        sample(tokens=(), weight_versions=[]),
        "no tokens for sample r-0, although its finish_reason is 'stop'",
    ),
    "an unknown finish": (
        sample(finish_reason={"type": "tired"}),
        'finish_reason {"type": "tired"} for sample',
    ),
    "a finish that cannot be hashed": (sample(finish_reason={"type": ["stop"]}), "finish_reason"),
    "a finish as text": (sample(finish_reason="stop"), 'finish_reason "stop" for sample r-0'),
    "no finish": (sample(finish_reason=None), "finish_reason null for sample r-0"),
    "another sample's answer": (sample("r-1"), 'sample "r-1" instead of sample r-0'),
    "no id": (without("id"), "sample null instead of sample r-0"),
    "no meta_info": ({"output_ids": [8, 9]}, "null as meta_info of sample r-0, which must be an object"),
    "no object": (7, "7 as sample r-0, which must be an object"),
    "an error with status 200": ({"error": {"message": "out of memory"}}, "null as meta_info"),
    "another prompt": (sample(prompt_tokens=4), "sample r-0 after a prompt of 4 tokens instead of 3"),
    "negative cached tokens": (sample(cached_tokens=-1), "cached_tokens -1 for sample r-0"),
    "more right drafts than drafts": (
        sample(spec_num_proposed_drafts=3, spec_num_correct_drafts=4),
        "4 of 3 drafted tokens right for sample r-0",
    ),
    "a fraction of a pass": (sample(spec_verify_ct=1.5), "spec_verify_ct 1.5 for sample r-0"),
    "negative retractions": (sample(num_retractions=-1), "num_retractions -1 for sample r-0"),
    "cached tokens as text": (sample(cached_tokens="many"), 'cached_tokens "many" for sample r-0'),
    "spans with a gap": (spans(("3", 0, 1), ("4", 2, 2)), "which leave gaps or overlap"),
    "spans that overlap": (spans(("3", 0, 2), ("4", 1, 2)), "which leave gaps or overlap"),
    "a span that ends too late": (spans(("3", 0, 10**9)), "which end at token 1000000000 of 2"),
    "a span that ends too early": (spans(("3", 0, 1)), "which end at token 1 of 2"),
    "a span backwards": (spans(("3", 0, -1), ("3", -1, 2)), "which leave gaps or overlap"),
    "a span with fractions": (spans(("3", 0.0, 2.0)), "which leave gaps or overlap"),
    "a span without a version": (sample(weight_versions=[{"start": 0, "end": 2}]), "weight version null"),
    "a span that begins with false": (spans((3, False, 2)), "which leave gaps"),
    "no version": (sample(weight_version=None, weight_versions=None), "weight version null"),
    "a name as version": (
        sample(weight_version="mine", weight_versions=None),
        'weight version "mine"; it must',
    ),
    "experts that nobody asked for": (sample(routed_experts="AAAA"), "experts for sample r-0, although none"),
    "a span without an end": (sample(weight_versions=[{"version": 1, "start": 0}]), "which leave gaps"),
    "spans as numbers": (sample(weight_versions=[0, 2]), "0 as a span of weight_versions"),
    "spans as text": (sample(weight_versions="3"), 'weight_versions "3" for sample r-0'),
    "versions that go back": (spans(("4", 0, 1), ("3", 1, 2)), "which go back"),
    "a negative version": (spans(("-4", 0, 2)), 'weight version "-4"; it must be a whole number, at least 0'),
    "an odd version": (spans(("--4", 0, 2)), 'weight version "--4"'),
    "a version of many digits": (spans(("9" * 5000, 0, 2)), "weight version"),
    "a version with a fraction": (spans((4.5, 0, 2)), "weight version 4.5; it must be a whole number"),
    "a version that is true": (spans((True, 0, 2)), "weight version true"),
}


@pytest.mark.parametrize("answer", GOOD.values(), ids=GOOD)
def test_a_right_answer_is_taken(answer: Any) -> None:
    [[first, second]] = parse_generations(json.dumps([answer, sample("r-1")]).encode(), [REQUEST], LIMITS)
    assert (
        parse_sample(json.dumps(answer).encode(), REQUEST, 0, LIMITS).tokens.tolist() == first.tokens.tolist()
    )
    assert (first.tokens.dtype, first.log_probs.dtype) == (np.int32, np.float32)
    assert second.versions == (VersionSpan(4, 0, 2),)


@pytest.mark.parametrize(("answer", "why"), BAD.values(), ids=BAD)
def test_a_wrong_answer_is_refused_and_says_why(answer: Any, why: str) -> None:
    raw = json.dumps([answer, sample("r-1")]).encode()
    assert why in refusal(lambda: parse_generations(raw, [REQUEST], LIMITS))
    if isinstance(answer, dict):
        assert why in refusal(lambda: parse_sample(json.dumps(answer).encode(), REQUEST, 0, LIMITS))


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"", "0 bytes that are not JSON"),
        (json.dumps([sample(), sample("r-1")]).encode()[:-30], "bytes that are not JSON"),
        (b"[" * 100_000, "100000 bytes that are not JSON"),
        (b"[NaN, NaN]", "that are not JSON"),
        (b"\xff\xfe", "that are not JSON"),
        (b"null", "null where 2 samples were asked for"),
        (b'{"error": {"message": "\\u001b[2J"}}', '{"error": {"message": "\\u001b[2J"}} where 2 samples'),
        (json.dumps([sample()]).encode(), "a list of 1 where 2 samples were asked for"),
        (json.dumps([sample(), sample()]).encode(), 'sample "r-0" instead of sample r-1'),
        (json.dumps([sample("r-1"), sample("r-0")]).encode(), 'sample "r-1" instead of sample r-0'),
    ],
    ids=[
        "nothing",
        "cut_off",
        "deep",
        "NaN",
        "no_UTF-8",
        "null",
        "an_error_object",
        "too_few",
        "one_twice",
        "swapped",
    ],
)
def test_a_whole_answer_that_is_wrong(raw: bytes, why: str) -> None:
    assert why in refusal(lambda: parse_generations(raw, [REQUEST], LIMITS))


def with_experts(experts: Any) -> bytes:
    encoded = experts if not isinstance(experts, np.ndarray) else b64encode(experts.tobytes()).decode()
    return json.dumps([sample(routed_experts=encoded), sample("r-1", routed_experts=encoded)]).encode()


@pytest.mark.parametrize(
    ("experts", "why"),
    [
        (None, "null as routed_experts for sample r-0; it must be base64 of int32 numbers"),
        ("!!!", '"!!!" as routed_experts for sample r-0; it must be base64'),
        (b64encode(b"abc").decode(), '"YWJj" as routed_experts for sample r-0; it must be base64 of int32'),
        (np.zeros(0, np.int32), "experts of 0 numbers for 4 tokens"),
        (np.zeros(9, np.int32), "experts of 9 numbers for 4 tokens"),
        (np.full(8, -1, np.int32), "experts -1 to -1 for sample r-0; the model has 8"),
        (np.full(8, 8, np.int32), "experts 8 to 8 for sample r-0; the model has 8"),
    ],
)
def test_experts_that_cannot_be(experts: Any, why: str) -> None:
    limits = ModelLimits.of({"vocab_size": 100, "num_experts": 8}, experts=True)
    assert why in refusal(lambda: parse_generations(with_experts(experts), [REQUEST], limits))
    assert parse_generations(with_experts(np.full(8, 7, np.int32)), [REQUEST], limits)


def packed(tokens: Any, log_probs: Any) -> bytes:
    """As rlrun's own engines answer: base64 of arrays; other values as they are."""
    encode = lambda value: b64encode(value.tobytes()).decode() if isinstance(value, np.ndarray) else value  # noqa: E731
    answers = [sample(name, output_token_logprobs=encode(log_probs)) for name in ("r-0", "r-1")]
    return json.dumps([answer | {"output_ids": encode(tokens)} for answer in answers]).encode()


def test_packed_tokens_are_those_of_the_lists() -> None:
    raw = packed(np.array([8, 9], np.int32), np.array([-0.5, -0.5], np.float32))
    [[found, _]] = parse_generations(raw, [REQUEST], LIMITS, packed=True)
    [[listed, _]] = parse_generations(json.dumps([sample(), sample("r-1")]).encode(), [REQUEST], LIMITS)
    assert (found.tokens.tolist(), found.log_probs.tolist()) == ([8, 9], [-0.5, -0.5])
    assert (found.tokens.dtype, found.log_probs.dtype) == (listed.tokens.dtype, listed.log_probs.dtype)
    assert (found.versions, found.finish, found.cached_tokens) == (
        listed.versions,
        listed.finish,
        listed.cached_tokens,
    )


IDS, VALUES = np.array([8, 9], np.int32), np.array([-0.5, -0.5], np.float32)


@pytest.mark.parametrize(
    ("tokens", "log_probs", "why"),
    [
        ([8, 9], VALUES, "[8, 9] as output_ids for sample r-0; it must be base64 of int32 numbers"),
        ("!!!", VALUES, '"!!!" as output_ids for sample r-0'),
        (IDS, None, "null as output_token_logprobs for sample r-0; it must be base64 of float32 numbers"),
        (IDS, VALUES[:1], "1 log-probs of sample r-0, which has 2 tokens"),
        (np.array([8, 100], np.int32), VALUES, "token id 100 at token 1 of sample r-0"),
        (np.array([-1, 9], np.int32), VALUES, "token id -1 at token 0 of sample r-0"),
        (IDS, np.array([-0.5, np.nan], np.float32), "log-prob nan at token 1 of sample r-0"),
        (IDS, np.array([0.7, -0.5], np.float32), "log-prob 0.7 at token 0 of sample r-0"),
        (np.full(5, 8, np.int32), np.full(5, -1, np.float32), "5 tokens for sample r-0, although at most 4"),
        (IDS[:0], VALUES[:0], "no tokens for sample r-0"),
    ],
)
def test_packed_tokens_that_cannot_be(tokens: Any, log_probs: Any, why: str) -> None:
    raw = packed(tokens, log_probs)
    assert why in refusal(lambda: parse_generations(raw, [REQUEST], LIMITS, packed=True))


MASKED = replace(
    REQUEST, sampling=Sampling(max_new_tokens=4, top_k=3), options=RequestOptions(return_sampling_mask=True)
)


def with_mask(masks: Any, log_probs: Any) -> bytes:
    meta = {"output_token_sampling_mask": masks, "output_token_sampling_logprobs": log_probs}
    return json.dumps([sample(**meta), sample("r-1", **meta)]).encode()


def test_log_probs_are_those_over_the_mask() -> None:
    [[first, second]] = parse_generations(with_mask([[8, 3], [9]], [-0.25, 0.0]), [MASKED], LIMITS)
    assert first.log_probs.tolist() == [-0.25, 0.0]
    assert first.sampling_mask is not None
    assert first.sampling_mask.ids.tolist() == [8, 3, 9]
    assert first.sampling_mask.lengths.tolist() == [2, 1]
    assert second.sampling_mask is not None
    [[plain, _]] = parse_generations(with_mask([[8, 3], [9]], [-0.25, 0.0]), [REQUEST], LIMITS)
    assert (plain.sampling_mask, plain.log_probs.tolist()) == (None, [-0.5, -0.5])
    rest = json.loads(with_mask([[8], [9]], [0, 0]))[1:]
    raw = json.dumps([GOOD["aborted before the first token"], *rest]).encode()
    [[aborted, _]] = parse_generations(raw, [MASKED], LIMITS)
    assert aborted.sampling_mask is None


@pytest.mark.parametrize(
    ("masks", "log_probs", "why"),
    [
        (None, None, "no sampling mask for sample r-0: the engine cannot record masks"),
        ("89", [-1.0, -1.0], "the sampling masks of sample r-0, which has 2 tokens"),
        ([[8]], [-1.0, -1.0], "a list of 1 as the sampling masks of sample r-0, which has 2 tokens"),
        ([[8], [9], [9]], [-1.0, -1.0], "a list of 3 as the sampling masks"),
        ([8, 9], [-1.0, -1.0], "sampling masks of sample r-0 that are not lists of token ids"),
        ([[8], {"9": 1}], [-1.0, -1.0], "sampling masks of sample r-0 that are not lists of token ids"),
        ([[8], []], [-1.0, -1.0], "token 9 at 1 of sample r-0, which its sampling mask does not have"),
        ([[9], [9]], [-1.0, -1.0], "token 8 at 0 of sample r-0, which its sampling mask does not have"),
        ([[8, 100], [9]], [-1.0, -1.0], "token id 100 at token 1 of the sampling masks of sample r-0"),
        ([[8, -1], [9]], [-1.0, -1.0], "token id -1 at token 1 of the sampling masks of sample r-0"),
        ([[8, "3"], [9]], [-1.0, -1.0], 'token id "3" at token 1 of the sampling masks'),
        ([[8, 3.5], [9]], [-1.0, -1.0], "token id 3.5 at token 1 of the sampling masks"),
        ([[8, [3]], [9]], [-1.0, -1.0], "token id [3] at token 1 of the sampling masks"),
        ([[8, 3, 8], [9]], [-1.0, -1.0], "sampling masks of sample r-0 that have a token twice"),
        ([[8], [9]], None, "a list of 0 as the log-probs over the sampling masks of sample r-0"),
        ([[8], [9]], [-1.0], "a list of 1 as the log-probs over the sampling masks of sample r-0"),
        ([[8], [9]], [-1.0, None], "log-prob null at token 1 of sample r-0"),
        ([[8], [9]], [-1.0, 0.7], "log-prob 0.7 at token 1 of sample r-0"),
        ([[8], [9]], [[-1.0], [-1.0]], "log-prob [-1.0] at token 0 of sample r-0"),
    ],
)
def test_masks_that_cannot_be(masks: Any, log_probs: Any, why: str) -> None:
    assert why in refusal(lambda: parse_generations(with_mask(masks, log_probs), [MASKED], LIMITS))


def test_masks_may_be_as_long_as_their_request_allows() -> None:
    request = replace(MASKED, sampling=Sampling(max_new_tokens=4000, top_k=1000))
    raw = with_mask([list(range(100_000, 101_000))] * 4000, [-0.12345678901234567] * 4000)
    assert len(raw) < max_answer_bytes([request], ModelLimits(vocabulary=150_000)) < 10 * len(raw)


def score(*entries: Any) -> dict[str, Any]:
    return {"meta_info": {"input_token_logprobs": list(entries)}}


FIRST = [None, 5, None]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ([score(FIRST, [-1.0, 6, None], [0.7, 7, None])], "log-prob 0.7 at token 1 of sequence 0"),
        ([score(FIRST, [-1.0, 6, None], [None, 7, None])], "log-prob null at token 1 of sequence 0"),
        (
            [score(FIRST, [-1.0, 7, None], [-1.0, 6, None])],
            "log-probs of other tokens than those of sequence 0",
        ),
        ([score(FIRST)], "a list of 1 as the log-probs of sequence 0, which has 3 tokens"),
        ([{}], "null as meta_info of sequence 0"),
        ([], "0 sequences where log-probs of 1 were asked for"),
    ],
)
def test_scores_that_cannot_be(answer: Any, why: str) -> None:
    assert why in refusal(lambda: parse_scores(json.dumps(answer).encode(), [PROMPT]))
    good = [score(FIRST, [-1.0, 6, None], [-2.0, 7, None])]
    assert parse_scores(json.dumps(good).encode(), [PROMPT])[0].tolist() == [-1.0, -2.0]


@pytest.mark.parametrize(("vocabulary", "accepted"), [(8, True), (9, False)])
def test_a_server_may_name_only_the_last_token_of_the_vocabulary_0(vocabulary: int, accepted: bool) -> None:
    raw = json.dumps([score(FIRST, [-1.0, 6, None], [-2.0, 0, None])]).encode()
    limits = ModelLimits(vocabulary=vocabulary)
    if accepted:
        assert parse_scores(raw, [PROMPT], limits)[0].tolist() == [-1.0, -2.0]
    else:
        assert "0 at 2 instead of 7" in refusal(lambda: parse_scores(raw, [PROMPT], limits))


@pytest.mark.parametrize(
    ("version", "oldest", "newest", "why"),
    [
        (4, 4, 4, None),
        (5, 4, 5, None),
        (7, 0, None, None),
        (5, 5, 4, None),  # the trainer went back meanwhile
        (3, 4, 4, "tokens of weights 3, although it serves weights 4"),
        (5, 4, 4, "tokens of weights 5, although it was given none after 4"),
        (2, 0, 5, "tokens of weights 2, which it was never given"),  # a job that was resumed at step 3
    ],
)
def test_versions_that_an_engine_cannot_have(
    version: int, oldest: int, newest: int | None, why: str | None
) -> None:
    tokens = np.zeros(2, np.int32)
    made = Generation(tokens, np.zeros(2, np.float32), "stop", (VersionSpan(version, 0, 2),))
    if why is None:
        check_versions([[made]], oldest, newest, GIVEN)
        return
    assert why in refusal(lambda: check_versions([[made]], oldest, newest, GIVEN))


def test_an_answer_may_be_as_long_as_its_request_allows() -> None:
    ids, log_prob = [123456] * 4, -0.12345678901234567
    answer = sample("r-0", tuple(ids), output_token_logprobs=[[log_prob, one, "x" * 20] for one in ids])
    assert len(json.dumps([answer] * 2)) < max_answer_bytes([REQUEST]) < 3 << 20


def test_a_deeply_nested_value_is_a_bad_answer() -> None:
    raw = b'[{"meta_info": {"id": ' + b"[" * 1000 + b"]" * 1000 + b"}}, {}]"
    assert "a value that is nested too deeply" in refusal(lambda: parse_generations(raw, [REQUEST]))
