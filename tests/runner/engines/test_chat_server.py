"""The client of a chat-completions server, against a real server with faults; no pause is waited for."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlrun.plugins.failures import InfrastructureError
from rlrun.plugins.rewards.http_client import retry_after
from rlrun.runner.contracts.chat_answers import ChatAnswer
from rlrun.runner.engines.chat_server import (
    AnswerWithheld,
    ChatServer,
    RequestRefused,
    ServerRefuses,
)
from rlrun.specs.sections.evaluation import EvalServerSpec
from tests.runner.engines.chat_stand_in import Answer, ChatStandIn, choices, fault

BODY = {"messages": [{"role": "user", "content": "2 + 2?"}], "max_tokens": 8}
KEY = "sk-secret-1234567890abcdef"


@dataclass
class Clock:
    """A clock that pauses move."""

    now: float = 100.0
    pauses: list[float] = field(default_factory=list)

    async def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


def ask(
    stand_in: ChatStandIn, seeds: Sequence[int] = (7,), clock: Clock | None = None, **section: Any
) -> list[ChatAnswer]:
    clock = clock or Clock()

    async def run() -> list[ChatAnswer]:
        spec = EvalServerSpec(url=stand_in.url, model="org/toy", **section)
        server = ChatServer(spec, KEY, sleep=clock.sleep, clock=lambda: clock.now)
        try:
            return await server.answers(BODY, seeds)
        finally:
            await server.close()

    return asyncio.run(run())


def test_a_request_has_the_model_the_key_a_seed_and_further_fields() -> None:
    with ChatStandIn([choices("4", tokens=3, reasoning_content="two and two")]) as stand_in:
        [answer] = ask(stand_in, seeds=[2**40 + 5], extra_body={"reasoning_effort": "low"})
    assert (answer.text, answer.is_cut, answer.num_tokens) == ("4", False, 3)
    assert answer.reasoning == "two and two"
    [body] = stand_in.bodies
    assert body == {**BODY, "model": "org/toy", "seed": 5, "reasoning_effort": "low"}
    assert stand_in.keys == [f"Bearer {KEY}"]


@pytest.mark.parametrize(
    ("script", "requests"),
    [
        pytest.param([choices("a", "b", "c")], [3], id="n"),
        pytest.param([choices("a"), choices("b"), choices("c")], [3, None, None], id="n ignored"),
        pytest.param([fault(400), choices("a"), choices("b"), choices("c")], [3] + 3 * [None], id="no n"),
        pytest.param([choices("a", "b"), choices("c")], [3, None], id="too few"),
    ],
)
def test_several_answers_come_from_as_few_requests_as_the_server_allows(
    script: Sequence[Answer], requests: list[int | None]
) -> None:
    with ChatStandIn(script) as stand_in:
        answers = ask(stand_in, seeds=[1, 2, 3])
    assert sorted(answer.text for answer in answers) == ["a", "b", "c"]
    assert [body.get("n") for body in stand_in.bodies] == requests
    assert all(("seed" in body) == ("n" not in body) for body in stand_in.bodies)


@pytest.mark.parametrize(
    "passing",
    [
        fault(429),
        fault(500),
        fault(503),
        fault(408),
        (200, "{", {}),
        (200, '{"choices": []}', {}),
        (200, '{"error": 1}', {}),
        (302, "", {"Location": "http://127.0.0.1:1/"}),
    ],
    ids=["429", "500", "503", "408", "cut off", "no choices", "no completion", "redirect"],
)
def test_a_failure_that_passes_is_followed_by_another_request(passing: Answer) -> None:
    clock = Clock()
    if passing[0] == 302:  # a redirect would send the key elsewhere
        with ChatStandIn([passing]) as stand_in, pytest.raises(RequestRefused, match="HTTP 302"):
            ask(stand_in, clock=clock)
        return
    with ChatStandIn([passing, passing, choices("4")]) as stand_in:
        [answer] = ask(stand_in, clock=clock)
    assert answer.text == "4"
    assert len(stand_in.bodies) == 3
    first, second = clock.pauses
    assert 1 <= first < 2 <= second < 3


def test_a_server_that_is_gone_is_asked_until_the_budget_is_spent() -> None:
    stand_in, clock = ChatStandIn([]), Clock()
    stand_in.server_close()
    with pytest.raises(InfrastructureError, match=r"gave no answer in \d+ attempts .*retry_seconds = 60"):
        ask(stand_in, clock=clock, retry_seconds=60)
    assert 30 < sum(clock.pauses) <= 60


def test_a_server_that_does_not_answer_in_time_is_asked_again() -> None:
    with ChatStandIn(lambda body: choices("4")) as stand_in:
        stand_in._lock.acquire()  # every request waits
        with pytest.raises(InfrastructureError, match=r"the last: no answer within 0.05 s"):
            ask(stand_in, timeout=0.05, retry_seconds=2)
        stand_in._lock.release()


def test_all_requests_wait_as_long_as_the_server_asks() -> None:
    clock = Clock()

    async def run() -> None:
        section = EvalServerSpec(url=stand_in.url, model="org/toy")
        server = ChatServer(section, sleep=clock.sleep, clock=lambda: clock.now)
        await server.answers(BODY, [1])
        server._held_until = clock.now + 5  # another request was told to wait
        await server.answers(BODY, [2])
        await server.close()

    with ChatStandIn([fault(429, Retry_After="20"), choices("4")]) as stand_in:
        asyncio.run(run())
    asked, held = clock.pauses[0], clock.pauses[-1]
    assert 20 <= asked < 21
    assert held == 5


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("3", 3.0), ("0.5", 0.5), ("86400", 120.0), ("-1", 0.0), ("soon", None), ("nan", None), (None, None)],
)
def test_a_pause_that_a_service_asks_for(value: str | None, seconds: float | None) -> None:
    assert retry_after({} if value is None else {"Retry-After": value}) == seconds


def test_a_pause_may_be_asked_for_as_a_date() -> None:
    assert retry_after({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}) == 0.0


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (fault(401, f"the key {KEY} is wrong"), ServerRefuses, r"HTTP 401: the key \*\*\* is wrong"),
        (fault(404, "no such model"), ServerRefuses, "no such model. Correct eval.server, and continue"),
        (fault(402, "no money"), ServerRefuses, "no money"),
        (fault(400, "the prompt is too long"), RequestRefused, "HTTP 400: the prompt is too long"),
        (choices("", reason="content_filter"), AnswerWithheld, "content filter"),
    ],
    ids=["key", "model", "money", "request", "filter"],
)
def test_a_refusal_is_not_repeated(answer: Answer, error: type[Exception], message: str) -> None:
    with ChatStandIn([answer]) as stand_in, pytest.raises(error, match=message) as raised:
        ask(stand_in)
    assert len(stand_in.bodies) == 1
    assert KEY not in str(raised.value)


def test_a_model_may_have_another_name_for_the_length() -> None:
    script = [fault(400, "Use 'max_completion_tokens' instead."), choices("4", reason="length")]
    with ChatStandIn(script) as stand_in:
        [answer] = ask(stand_in)
    assert answer.is_cut
    assert [set(body) & {"max_tokens", "max_completion_tokens"} for body in stand_in.bodies] == [
        {"max_tokens"},
        {"max_completion_tokens"},
    ]
