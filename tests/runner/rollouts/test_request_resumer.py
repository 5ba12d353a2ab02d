import asyncio
import json
from collections.abc import Sequence

import numpy as np
import pytest

from rlrun.plugins.generation import Generation, Sampling
from rlrun.plugins.sampling_mask import SamplingMask
from rlrun.plugins.types import VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.rollouts import request_resumer
from rlrun.runner.rollouts.request_resumer import ResumingEngines
from rlrun.runner.rollouts.resumable_request import (
    ResumableRequest,
    generation_of,
    join,
    record_of,
    truncate,
)
from tests.runner.typing_engines import PROMPT, TypingEngines, token_at

SEEDS = (11, 12, 13)


def request(index: int = 5, budget: int = 20, least: int = 0) -> GenerateRequest:
    tokens = np.full(PROMPT, index, dtype=np.int32)
    return GenerateRequest(
        f"rollout-{index}", tokens, SEEDS, Sampling(budget, min_new_tokens=least), prompt_index=index
    )


def words(batch: Sequence[np.ndarray]) -> list[str]:
    return ["".join(f"<{token}>" for token in tokens.tolist()) for tokens in batch]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def whole(seed: int, length: int) -> list[int]:
    return [token_at(seed, PROMPT + place) for place in range(length)]


async def test_a_stopped_request_goes_on_from_its_tokens_by_the_new_weights() -> None:
    engines = TypingEngines(lambda index, number: 4 + 6 * number)
    resumable = ResumingEngines(engines, words)
    asked = asyncio.create_task(resumable.generate(request(budget=12, least=7)))
    await turns(7)
    await resumable.stop()
    so_far = [len(one.tokens) for one in resumable.generations(5)]
    assert so_far[0] == 4 < so_far[1] == so_far[2] < 10
    engines.version = 1
    resumable.resume()
    made = await asked
    assert [one.tokens.tolist() for one in made] == [
        whole(11, 4), whole(12, 10), whole(13, 12),
    ]  # fmt: skip
    assert [one.finish for one in made] == ["stop", "stop", "length"]
    assert made[0].versions == (VersionSpan(0, 0, 4),)
    assert made[1].versions == (VersionSpan(0, 0, so_far[1]), VersionSpan(1, so_far[1], 10))
    assert made[1].log_probs.tolist() == [-0.5] * so_far[1] + [-1.5] * (10 - so_far[1])
    again = engines.requests[1:]
    assert [one.seeds for one in again] == [(12,), (13,)]  # the finished one is not asked for again
    assert {one.sampling.max_new_tokens for one in again} == {12 - so_far[1]}
    assert {one.sampling.min_new_tokens for one in again} == {7 - so_far[1]}
    assert [len(one.tokens) for one in resumable.generations(5)] == [4, 10, 12]
    assert await resumable.generate(request(budget=12, least=7)) == made  # nothing is made twice
    assert len(engines.requests) == 3


@pytest.mark.parametrize("overlap", [1, 3])
@pytest.mark.parametrize("least", [0, 12])
async def test_a_stop_string_that_lies_across_a_stop_ends_its_sample(overlap: int, least: int) -> None:
    """`overlap` tokens of it were made before; engines see only what they make themselves."""
    _, _, cut = await stopped_after(Sampling(20))
    made = whole(12, 20)
    stop = words([np.array(made[cut - overlap : cut + 2])])[0][1:-1]  # it begins and ends within a token
    asked, resumable, begun = await stopped_after(Sampling(20, stop=(stop, "never"), min_new_tokens=least))
    assert begun == cut < 10
    resumable.resume()
    _, ended, _ = await asked
    length = cut + 2  # in one go too, whatever the minimum
    assert (ended.finish, ended.tokens.tolist()) == ("stop", made[:length])
    assert len(ended.log_probs) == length
    assert ended.versions == (VersionSpan(0, 0, cut), VersionSpan(1, cut, length))


async def stopped_after(
    sampling: Sampling,
) -> tuple[asyncio.Task[list[Generation]], ResumingEngines, int]:
    """A request that was stopped, its engines with new weights, and how long its second sample was."""
    engines = TypingEngines(lambda index, number: 30)
    resumable = ResumingEngines(engines, words)
    one = GenerateRequest("rollout-5", np.full(PROMPT, 5, dtype=np.int32), SEEDS, sampling, prompt_index=5)
    asked = asyncio.create_task(resumable.generate(one))
    await turns(7)
    await resumable.stop()
    engines.version = 1
    return asked, resumable, len(resumable.generations(5)[1].tokens)


async def test_samples_without_a_token_are_asked_for_together() -> None:
    engines = TypingEngines(lambda index, number: 3)
    resumable = ResumingEngines(engines, words)
    await resumable.stop()
    asked = asyncio.create_task(resumable.generate(request()))
    await turns(3)
    assert engines.requests == []
    resumable.resume()
    await asked
    assert [one.seeds for one in engines.requests] == [SEEDS]


async def test_a_parked_request_whose_time_is_up_answers_with_what_it_has() -> None:
    engines = TypingEngines(lambda index, number: 50)
    resumable = ResumingEngines(engines, words)
    late = request(budget=99)
    asked = asyncio.create_task(resumable.generate(late))
    await turns(7)
    await resumable.stop()
    await resumable.abort(late)
    made = await asked
    assert [one.finish for one in made] == ["abort"] * 3
    assert all(0 < len(one.tokens) < 50 for one in made)
    assert len(engines.requests) == 1


async def test_parked_requests_go_on_in_the_order_asked_for() -> None:
    engines = TypingEngines(lambda index, number: 50)
    resumable = ResumingEngines(engines, words)
    asked = [asyncio.create_task(resumable.generate(request(index))) for index in (1, 2, 3)]
    await turns(4)
    await resumable.stop()
    engines.requests.clear()
    resumable.resume([3, 1])
    await asyncio.gather(*asked)
    indices = [int(one.tokens[0]) for one in engines.requests]
    assert indices == sorted(indices, key=[3, 1, 2].index)


async def test_an_engine_that_does_not_answer_an_abort_loses_what_it_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(request_resumer, "GRACE_SECONDS", 0.02)
    engines = TypingEngines(lambda index, number: 10**9)
    resumable = ResumingEngines(engines, words)
    asked = asyncio.create_task(resumable.generate(request(budget=10**9)))
    engines.deaf = True
    await turns(4)
    await resumable.stop()
    assert [len(one.tokens) for one in resumable.generations(5)] == [0, 0, 0]
    engines.length = lambda index, number: 2
    resumable.resume()
    assert [len(one.tokens) for one in await asked] == [2, 2, 2]


async def test_a_request_of_a_resumed_job_finds_its_tokens() -> None:
    engines = TypingEngines(lambda index, number: 12)
    resumable = ResumingEngines(engines, words)
    asked = asyncio.create_task(resumable.generate(request()))
    await turns(5)
    await resumable.stop()
    so_far = [len(one.tokens) for one in resumable.generations(5)]
    state = json.loads(json.dumps(resumable.state()))
    asked.cancel()
    other = ResumingEngines(engines, words)
    other.restore(state)
    assert [len(one.tokens) for one in other.generations(5)] == so_far
    assert other.state() == state
    engines.version = 3
    made = await other.generate(request())
    assert [one.tokens.tolist() for one in made] == [whole(seed, 12) for seed in SEEDS]
    assert [span.version for span in made[0].versions] == [0, 3]
    other.forget(5)
    assert other.state() == {}


@pytest.mark.parametrize("budget", [1, 2, 3])
async def test_a_resumed_job_that_allows_fewer_tokens_ends_its_samples_there(budget: int) -> None:
    engines = TypingEngines(lambda index, number: 12)
    resumable = ResumingEngines(engines, words)
    asked = asyncio.create_task(resumable.generate(request()))
    await turns(5)
    await resumable.stop()
    state = resumable.state()
    asked.cancel()
    assert min(len(one.tokens) for one in resumable.generations(5)) >= 2
    other = ResumingEngines(engines, words)
    other.restore(state)
    made = await other.generate(request(budget=budget))
    assert [one.tokens.tolist() for one in made] == [whole(seed, budget) for seed in SEEDS]
    assert {one.finish for one in made} == {"length"}
    assert [one.versions[-1].end for one in made] == [budget] * 3


async def test_tokens_of_another_question_are_not_taken() -> None:
    engines = TypingEngines(lambda index, number: 12)
    resumable = ResumingEngines(engines, words)
    asked = asyncio.create_task(resumable.generate(request()))
    await turns(5)
    await resumable.stop()
    other = ResumingEngines(engines, words)
    other.restore(resumable.state())
    asked.cancel()
    engines.version = 1
    changed = GenerateRequest("rollout-5", np.array([5, 5, 6], np.int32), SEEDS, Sampling(20), prompt_index=5)
    made = await other.generate(changed)
    assert [span.version for span in made[0].versions] == [1]
    other.forget(5)
    assert other.state() == {}


async def test_an_aborted_request_answers_with_what_it_has() -> None:
    engines = TypingEngines(lambda index, number: 3 if number == 0 else 10**9)
    resumable = ResumingEngines(engines, words)
    one = request(budget=10**9)
    asked = asyncio.create_task(resumable.generate(one))
    await turns(8)
    await resumable.abort(one)
    made = await asked
    assert [each.finish for each in made] == ["stop", "abort", "abort"]
    assert len(made[1].tokens) >= 3


async def test_an_engines_error_is_the_askers() -> None:
    class FailingEngines(TypingEngines):
        async def generate(self, request: GenerateRequest) -> list[Generation]:
            raise EngineError("500")

    resumable = ResumingEngines(FailingEngines(lambda index, number: 1), words)
    with pytest.raises(EngineError, match="500"):
        await resumable.generate(request())
    await resumable.stop()


def test_neighbouring_spans_of_a_version_are_one() -> None:
    def part(*spans: VersionSpan) -> Generation:
        length = spans[-1].end
        return Generation(np.ones(length, np.int32), np.zeros(length, np.float32), "stop", spans)

    both = join(
        part(VersionSpan(1, 0, 2), VersionSpan(2, 2, 3)), part(VersionSpan(2, 0, 4), VersionSpan(3, 4, 5))
    )
    assert both.versions == (VersionSpan(1, 0, 2), VersionSpan(2, 2, 7), VersionSpan(3, 7, 8))


def test_masks_of_both_parts_of_a_sample_stay_with_their_tokens() -> None:
    def part(ids: list[int], lengths: list[int]) -> Generation:
        mask = SamplingMask(np.array(ids, np.int32), np.array(lengths, np.int32))
        length, spans = len(lengths), (VersionSpan(1, 0, len(lengths)),)
        ones = np.ones(length, np.int32)
        return Generation(ones, np.zeros(length, np.float32), "stop", spans, sampling_mask=mask)

    first = generation_of(json.loads(json.dumps(record_of(part([5, 9, 7], [2, 1])))))
    both = join(first, part([3, 4, 8], [2, 1]))
    assert both.sampling_mask is not None
    assert both.sampling_mask.ids.tolist() == [5, 9, 7, 3, 4, 8]
    assert both.sampling_mask.lengths.tolist() == [2, 1, 2, 1]
    cut = truncate(both, 3, 4).sampling_mask
    assert cut is not None
    assert (cut.ids.tolist(), cut.lengths.tolist()) == ([5, 9, 7, 3, 4], [2, 1, 2])
    old = {key: value for key, value in record_of(first).items() if key != "sampling_mask"}
    assert generation_of(old).sampling_mask is None


def test_the_remaining_part_of_a_request() -> None:
    def made(length: int, finish: str) -> Generation:
        versions = (VersionSpan(0, 0, length),) if length else ()
        return Generation(np.full(length, 9, np.int32), np.zeros(length, np.float32), finish, versions)  # type: ignore[arg-type]

    one = request(budget=12, least=2)
    fresh, second = ResumableRequest(
        one, [made(0, "abort"), made(4, "abort"), made(3, "stop")]
    ).next_requests()
    assert (fresh[0], fresh[1].id, fresh[1].seeds) == ([0], one.id, (11,))
    assert fresh[1].sampling == one.sampling
    assert (second[0], second[1].id, second[1].seeds) == ([1], f"{one.id}-1", (12,))
    assert second[1].tokens.tolist() == [*one.tokens.tolist(), 9, 9, 9, 9]
    assert (second[1].sampling.max_new_tokens, second[1].sampling.min_new_tokens) == (8, 0)
    assert ResumableRequest(one, [made(0, "abort")] * 3).next_requests() == [([0, 1, 2], one)]
    assert not ResumableRequest(one, [made(3, "stop")] * 3).next_requests()
