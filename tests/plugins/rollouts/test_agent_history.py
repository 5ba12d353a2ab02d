"""What clients change in a history without beginning another sample, and what begins one."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.plugins.authoring.rollout_testing import LetterChat
from rlrun.plugins.generation import Generation
from rlrun.plugins.rollouts.agent.history import RULES, History, Rule
from rlrun.plugins.rollouts.agent.record import Conversation, Record
from rlrun.plugins.types import VersionSpan

CHAT = LetterChat()
Messages = list[dict[str, Any]]


def calls(*ids: str, arguments: str = '{"a": 1}') -> Messages:
    return [
        {"id": one, "type": "function", "function": {"name": "add", "arguments": arguments}} for one in ids
    ]


def generation(text: str, number: int = 0) -> Generation:
    """An answer whose tokens all have log-prob -number."""
    tokens = CHAT.encode(text + "\0")
    log_probs = np.full(len(tokens), -float(number), np.float32)
    return Generation(tokens, log_probs, "stop", (VersionSpan(0, 0, len(tokens)),))


QUESTION = {"role": "user", "content": "q"}
ANSWER = {"role": "assistant", "content": "I add.", "tool_calls": calls("call_1_0", "call_1_1")}
ONE = {"role": "tool", "tool_call_id": "call_1_0", "content": "1"}
TWO = {"role": "tool", "tool_call_id": "call_1_1", "content": "2"}
REMINDED = "<system-reminder>\nBe brief.\n</system-reminder>\nq"


@pytest.mark.parametrize(
    ("rule", "sent"),
    [
        (None, [QUESTION, ANSWER, ONE, TWO]),
        (
            "call_ids",
            [QUESTION, {**ANSWER, "tool_calls": calls("call_1_0", "call_1_1", arguments='{"b":2}')}, ONE],
        ),
        ("white_space", [QUESTION, {**ANSWER, "content": "\nI add. "}, ONE, TWO]),
        ("reminders", [{"role": "user", "content": REMINDED}, ANSWER, ONE, TWO]),
        (None, [{**QUESTION, "content": [{"type": "text", "text": "q", "cache_control": {}}]}, ANSWER, ONE]),
        (None, [QUESTION, {**ANSWER, "provider_specific_fields": {}, "reasoning_content": "hm"}, ONE, TWO]),
    ],
)
def test_a_change_that_clients_make_begins_no_other_sample(rule: Rule | None, sent: Messages) -> None:
    for rules, samples in (
        (RULES, 1),
        (tuple(one for one in RULES if one != rule), 1 if rule is None else 2),
    ):
        record = Record(CHAT, "keep", History(rules))
        record.answer(record.ask([QUESTION], ()), generation("I add."), ANSWER)
        conversation = record.ask(record.history.prepared(sent), ())
        record.answer(conversation, generation("3"), {"role": "assistant", "content": "3"})
        assert len(record.close()) == samples, rules


@pytest.mark.parametrize(
    "sent",
    [
        [{"role": "user", "content": "Q"}, ANSWER, ONE],
        [QUESTION, {**ANSWER, "content": "I added."}, ONE],
        [QUESTION, {**ANSWER, "tool_calls": calls("call_1_0")}, ONE],
        [QUESTION, {**ANSWER, "tool_calls": calls("call_1_1", "call_1_0")}, ONE],
        [QUESTION, {**ANSWER, "tool_calls": calls("call_9_0", "call_9_1", arguments="{}")}, ONE],
        [{"role": "system", "content": "be good"}, QUESTION, ANSWER, ONE],
        [ANSWER, ONE],
    ],
)
def test_another_history_is_another_sample(sent: Messages) -> None:
    record = Record(CHAT, "keep")
    record.answer(record.ask([QUESTION], ()), generation("I add."), ANSWER)
    record.answer(record.ask(sent, ()), generation("3"), {"role": "assistant", "content": "3"})
    assert len(record.close()) == 2


def test_results_come_in_the_order_of_their_calls() -> None:
    record = Record(CHAT, "keep")
    record.answer(record.ask([QUESTION], ()), generation("I add."), ANSWER)
    assert record.history.prepared([QUESTION, ANSWER, TWO, ONE]) == [QUESTION, ANSWER, ONE, TWO]
    other = {"role": "tool", "tool_call_id": "another", "content": "?"}
    assert record.history.prepared([other, TWO, QUESTION, ONE]) == [TWO, other, QUESTION, ONE]


def test_the_header_of_a_client_is_not_shown() -> None:
    header = {"type": "text", "text": "x-anthropic-billing-header: cc_version=1; cch=abc;"}
    text = {"type": "text", "text": "You repair."}
    system = {"role": "system", "content": [header, text]}
    assert History().prepared([system]) == [{"role": "system", "content": [text]}]
    assert History().prepared([{"role": "system", "content": [header]}, QUESTION]) == [QUESTION]
    assert History(()).prepared([system]) == [system]


@dataclass
class Sent:
    """A message as a client sends it, and what it stands for whatever the client did to it."""

    message: dict[str, Any]
    meaning: tuple[str, ...]


@dataclass
class Reference:
    """The samples that a record must have, from the meanings of messages alone: pieces of text, each with
    whether it is trained and its log-prob.
    """

    samples: list[list[tuple[str, bool, float]]] = field(default_factory=list)
    answered: list[list[tuple[tuple[tuple[str, ...], ...], int]]] = field(default_factory=list)
    """Of each sample: the meanings up to each answer, and the number of pieces."""
    waiting: list[bool] = field(default_factory=list)

    def ask(self, sent: Sequence[Sent]) -> int:
        meanings = tuple(one.meaning for one in sent)
        longest: tuple[int, int, int] | None = None
        for sample, answers in enumerate(self.answered):
            for known, pieces in answers:
                if meanings[: len(known)] == known and (longest is None or len(known) > longest[0]):
                    longest = len(known), sample, pieces
        new = sent[longest[0] :] if longest else []
        if longest is None or not new or any(one.message["role"] == "assistant" for one in new):
            return self._begin([(text_of(sent), False, 0.0)])
        _, sample, pieces = longest
        if self.waiting[sample] or pieces != len(self.samples[sample]):
            shared = "".join(text for text, _, _ in self.samples[sample][:pieces])
            return self._begin([(shared + "\n" + text_of(new), False, 0.0)])
        self.samples[sample].append(("\n" + text_of(new), False, 0.0))
        self.waiting[sample] = True
        return sample

    def answer(self, sample: int, sent: Sequence[Sent], answer: Sent, log_prob: float) -> None:
        self.samples[sample].append((str(answer.message["content"]) + "\0", True, log_prob))
        meanings = (*(one.meaning for one in sent), answer.meaning)
        self.answered[sample].append((meanings, len(self.samples[sample])))
        self.waiting[sample] = False

    def _begin(self, pieces: list[tuple[str, bool, float]]) -> int:
        self.samples.append(pieces)
        self.answered.append([])
        self.waiting.append(True)
        return len(self.samples) - 1


def text_of(sent: Sequence[Sent]) -> str:
    return "".join(map(chr, CHAT.render([one.message for one in sent])))


def given_message(role: str, text: str) -> Sent:
    return Sent({"role": role, "content": text}, (role, text))


def edited(one: Sent, edit: str) -> Sent:
    """A message after a change that a client makes; only `rewrite` changes what it means."""
    message, meaning = dict(one.message), one.meaning
    content = str(message["content"])
    match edit:
        case "space":
            message["content"] = f" {content}\n"
        case "reminder" if message["role"] != "assistant":
            message["content"] = f"<system-reminder>now</system-reminder>{content}"
        case "arguments" if message.get("tool_calls"):
            ids = [call["id"] for call in message["tool_calls"]]
            message["tool_calls"] = calls(*ids, arguments='{"a":1,"c":false}')
        case "rewrite":
            message["content"] = f"{content}!"
            meaning = (meaning[0], f"{meaning[1]}!", *meaning[2:])
    return Sent(message, meaning)


EDITS = st.sampled_from(["", "", "", "space", "reminder", "arguments", "rewrite"])
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "ask", "answer", "answer", "again", "drop", "repeat"]),
        st.integers(0, 9),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["user", "tool", "system"]),
        st.booleans(),
        st.lists(EDITS, min_size=1, max_size=4),
    ),
    max_size=20,
)


@given(STEPS)
def test_any_history_gives_the_samples_that_its_meaning_gives(
    steps: list[tuple[str, int, str, str, bool, list[str]]],
) -> None:
    record, reference = Record(CHAT, "keep"), Reference()
    histories: list[list[Sent]] = [[]]
    pending: list[tuple[list[Sent], Conversation, int]] = []
    drawn = 0
    for kind, which, text, role, has_calls, edits in steps:
        if kind == "answer":
            if not pending:
                continue
            sent, conversation, sample = pending.pop(which % len(pending))
            drawn += 1
            ids = (f"call_{drawn}_0",) if has_calls else ()
            message: dict[str, Any] = {"role": "assistant", "content": text}
            answer = Sent(message, ("assistant", text, *ids))
            if ids:
                message["tool_calls"] = calls(*ids)
            record.answer(conversation, generation(text, drawn), message)
            reference.answer(sample, sent, answer, -float(drawn))
            histories.append([*sent, answer])
            continue
        base = histories[which % len(histories)]
        sent = [edited(one, edits[i % len(edits)]) for i, one in enumerate(base)]
        if kind == "drop" and sent:
            del sent[which % len(sent)]
        if kind == "repeat" and sent:
            sent.append(sent[-1])
        if kind != "again" or not sent:
            sent = [*sent, given_message(role, text)]
        pending.append((sent, record.ask([one.message for one in sent], ()), reference.ask(sent)))
    trained = [pieces for pieces in reference.samples if any(kept for _, kept, _ in pieces)]
    found = sorted(pieces_of(conversation) for conversation in record.close())
    assert found == sorted(map(cut, trained))


def cut(pieces: Sequence[tuple[str, bool, float]]) -> list[tuple[str, bool, float]]:
    """Returns the pieces up to the last that is trained: a question without an answer is not in a sample."""
    last = max(i for i, (_, kept, _) in enumerate(pieces) if kept)
    return merged(pieces[: last + 1])


def merged(pieces: Sequence[tuple[str, bool, float]]) -> list[tuple[str, bool, float]]:
    joined: list[tuple[str, bool, float]] = []
    for text, kept, log_prob in pieces:
        if joined and joined[-1][1:] == (kept, log_prob):
            joined[-1] = (joined[-1][0] + text, kept, log_prob)
        else:
            joined.append((text, kept, log_prob))
    return joined


def pieces_of(conversation: Conversation) -> list[tuple[str, bool, float]]:
    tokens, log_probs, mask, _ = conversation.trajectory.response()
    letters: list[tuple[str, bool, float]] = [("".join(map(chr, conversation.trajectory.prompt)), False, 0.0)]
    for token, log_prob, kept in zip(tokens, log_probs, mask > 0, strict=True):
        letters.append((chr(token), bool(kept), float(log_prob) if kept else 0.0))
    return merged(letters)
