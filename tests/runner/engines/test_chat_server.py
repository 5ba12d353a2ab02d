"""The client of a chat-completions server, against a real server with faults; no pause is waited for."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from rlrun.cli.evaluated_model import find_served
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
        (200, "<html>busy</html>", {}),
        choices("4", reason="abort"),
        choices("4", reason="error"),
        choices({"a": 1}),
        choices("4", tool_calls={"function": {}}),
        choices("4", tool_calls=["add"]),
    ],
    ids=["429", "500", "503", "408", "cut off", "no choices", "no completion", "HTML", "aborted", "error",
         "an object as text", "an object of calls", "a text as call"],
)  # fmt: skip
def test_a_failure_that_passes_is_followed_by_another_request(passing: Answer) -> None:
    clock = Clock()
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
        (fault(400, "x" * 290 + KEY), RequestRefused, r"x{290}\*\*\*"),
        (
            (307, "", {"Location": "http://127.0.0.1:1/"}),
            ServerRefuses,
            "it redirects to http://127.0.0.1:1/",
        ),
        (choices("", reason="content_filter"), AnswerWithheld, "content filter"),
        (choices("", reason="SAFETY"), AnswerWithheld, "'SAFETY'"),
    ],
    ids=["key", "model", "money", "request", "key at the end of the quote", "redirect", "filter", "other"],
)
def test_a_refusal_is_not_repeated(answer: Answer, error: type[Exception], message: str) -> None:
    with ChatStandIn([answer]) as stand_in, pytest.raises(error, match=message) as raised:
        ask(stand_in)
    assert len(stand_in.bodies) == 1
    assert KEY[:8] not in str(raised.value)


def test_a_model_may_have_another_name_for_the_length() -> None:
    script = [fault(400, "Use 'max_completion_tokens' instead."), choices("4", reason="length")]
    with ChatStandIn(script) as stand_in:
        [answer] = ask(stand_in)
    assert answer.is_cut
    assert [set(body) & {"max_tokens", "max_completion_tokens"} for body in stand_in.bodies] == [
        {"max_tokens"},
        {"max_completion_tokens"},
    ]


def test_requests_on_their_way_learn_the_other_name_of_the_length() -> None:
    def answer(body: Mapping[str, Any]) -> Answer:
        return fault(400, "Use 'max_completion_tokens'.") if "max_tokens" in body else choices("4")

    async def run() -> list[list[ChatAnswer]]:
        server = ChatServer(EvalServerSpec(url=stand_in.url, model="org/toy"))
        try:
            return await asyncio.gather(*(server.answers(BODY, [seed]) for seed in range(4)))
        finally:
            await server.close()

    with ChatStandIn(answer) as stand_in:
        assert [one.text for [one] in asyncio.run(run())] == ["4"] * 4


@pytest.mark.parametrize("value", ["0", "-5", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_pauses_grow_where_a_server_asks_for_none(value: str) -> None:
    clock = Clock()
    with ChatStandIn([*[fault(429, Retry_After=value)] * 3, choices("4")]) as stand_in:
        ask(stand_in, clock=clock)
    assert [int(pause) for pause in clock.pauses] == [1, 2, 4]


@pytest.mark.parametrize(
    ("count", "known"), [(3, 3), (0, 0), (-1, None), (2**70, None), (True, None), ("3", None), (2.5, None)]
)
def test_a_number_of_tokens_is_a_number(count: Any, known: int | None) -> None:
    with ChatStandIn([choices("4", tokens=count)]) as stand_in:
        assert ask(stand_in)[0].num_tokens == known


@pytest.mark.parametrize(
    ("reason", "is_cut"), [("length", True), ("max_tokens", True), ("eos", False), (None, False)]
)
def test_servers_name_the_end_of_an_answer(reason: Any, is_cut: bool) -> None:
    with ChatStandIn([choices("4", reason=reason)]) as stand_in:
        assert ask(stand_in)[0].is_cut == is_cut


@pytest.mark.parametrize("key", ["", "secret\n", " secret", "s\x00cret", "sécret"])
def test_a_key_that_no_header_holds_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(ValueError, match="the server's key is empty, or has a line break") as error:
        ChatServer(EvalServerSpec(url="http://127.0.0.1:1/v1", model="org/toy"), key)
    assert "cret" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user:word@host/v1", "holds credentials"),
        ("http://user@host/v1", "holds credentials"),
        ("http://host/v1?version=2", "has a query behind its path"),
        ("http://host/v1#top", "has a query behind its path"),
        ("http:///v1", "is not an address with a host"),
        ("http://[::1/v1", "is not an address with a host"),
        ("http://host:99999/v1", "is not an address with a host"),
    ],
)
def test_an_address_is_one_that_a_path_is_appended_to(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        EvalServerSpec(url=url, model="org/toy")
    with pytest.raises(ValueError, match=message) as error:
        find_served(url, None, None)
    assert "word" not in str(error.value)


def test_the_key_of_a_variable_is_checked_before_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOY_KEY", "secret\n")
    with pytest.raises(ValueError, match="--api-key-env TOY_KEY: the server's key is empty, or has") as error:
        find_served("http://127.0.0.1:1/v1", None, "TOY_KEY")
    assert "secret" not in str(error.value)
