import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from rlrun.plugins.buffers.by_age import AgeParams, Fifo
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.session import Session
from rlrun.plugins.types import Buffered, Drop, Group
from rlrun.runner.contracts.errors import JobError
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.partial import PartialSource
from rlrun.runner.rollouts.rollout_source import Batch
from rlrun.runner.rollouts.synchronous import SynchronousSource
from rlrun.specs.sections.rollout import RolloutSpec
from tests.resolved_specs import resolved_rollout
from tests.runner.loop_fakes import Instant, Prompts, drop_even, policy
from tests.runner.typing_engines import PROMPT, TypingEngines, token_at

SPEC = resolved_rollout(
    batch_size=3, samples_per_prompt=2, oversample=5, max_response_tokens=500, partial=True, max_staleness=2
)
FIFO = Fifo(AgeParams())


def source(
    engines: TypingEngines, spec: RolloutSpec = SPEC, filters: Any = (), strategy: Any = FIFO
) -> PartialSource:
    prompts: Any = Instant(spec.oversample)
    return PartialSource(spec, policy(engines), prompts, Filters(list(filters)), strategy)  # type: ignore[arg-type]


def skewed(index: int, number: int) -> int:
    """Every fourth prompt has a sample that takes several steps."""
    return 60 if index % 4 == 1 and number else 6 + index % 3


def indices(batch: Batch) -> list[int]:
    return [group.prompt.index for group in batch.groups]


async def steps(rollouts: PartialSource, engines: TypingEngines, versions: Sequence[int]) -> list[Batch]:
    batches = []
    for version in versions:
        engines.version = version
        batches.append(await rollouts.next(version))
    return batches


def samples(batches: Sequence[Batch]) -> list[Any]:
    return [one for batch in batches for group in batch.groups for one in group.samples]


async def test_what_a_step_leaves_is_used_by_the_next_and_nothing_twice() -> None:
    engines = TypingEngines(skewed)
    rollouts = source(engines)
    batches = await steps(rollouts, engines, range(10))
    used = [index for batch in batches for index in indices(batch)]
    assert len(used) == len(set(used)) == 30
    assert set(used) >= set(range(20))  # fifo: nobody is left behind
    for version, batch in enumerate(batches):
        assert indices(batch) == sorted(indices(batch))
        oldest = min(one.oldest_version for group in batch.groups for one in group.samples)
        assert version - 2 <= oldest <= version
    partial = [one for one in samples(batches) if len(one.versions) > 1]
    assert partial
    assert all(one.versions[0].start == 0 and one.versions[-1].end == len(one.tokens) for one in partial)
    await rollouts.close()
    assert len(asyncio.all_tasks()) == 1


async def test_samples_over_several_steps_are_those_of_one_step() -> None:
    def run(oversample: int) -> Any:
        engines = TypingEngines(skewed)
        spec = SPEC.model_copy(update={"oversample": oversample, "max_staleness": 9})
        return steps(source(engines, spec), engines, range(6))

    cut, uncut = samples(await run(5)), samples(await run(3))
    tokens = {one.id: one.tokens.tolist() for one in uncut}
    assert any(len(one.versions) > 1 for one in cut)
    for one in cut:
        assert one.tokens.tolist() == tokens.get(one.id, one.tokens.tolist())
        assert one.tokens[0] in {token_at(request_seed, PROMPT) for request_seed in seeds_of(one)}


def seeds_of(one: Any) -> list[int]:
    from rlrun.runner.contracts.seeds import sample_seed, turn_seed

    number = int(one.id.split("-")[1])
    return [turn_seed(sample_seed(7, "rollout", one.prompt.index, number), 0)]


async def test_the_strategy_is_shown_the_buffer_by_prompt_and_how_old_it_is() -> None:
    seen: list[tuple[int, list[Buffered]]] = []

    class RecordingStrategy:
        def order(self, buffered: Sequence[Buffered], version: int) -> Sequence[int]:
            seen.append((version, list(buffered)))
            return FIFO.order(buffered, version)

    engines = TypingEngines(lambda index, number: 500 if index in (1, 4) else 5)
    rollouts = source(engines, strategy=RecordingStrategy())
    await steps(rollouts, engines, range(3))
    await rollouts.close()
    begun = [(version, one) for version, buffered in seen for one in buffered if not one.finished]
    assert {one.index: one.oldest_version for version, one in begun if version == 2 and one.tokens}[1] == 0
    for _, buffered in seen:
        assert [one.index for one in buffered] == sorted(one.index for one in buffered)
    assert all(one.finished for _, buffered in seen[1::2] for one in buffered), "asked when a step ends"


async def test_a_prompt_whose_group_was_dropped_is_not_asked_again_after_a_resume() -> None:
    engines = TypingEngines(skewed)
    rollouts = source(engines, filters=[("odd", drop_even)])
    await steps(rollouts, engines, range(2))
    dropped = {int(request.tokens[0]) for request in engines.requests if request.tokens[0] % 2 == 0}
    again = engines.again()
    resumed = source(again, filters=[("odd", drop_even)])
    await resumed.restore(json.loads(json.dumps(rollouts.state())))
    await steps(resumed, again, [2])
    asked = {int(request.tokens[0]) for request in again.requests}
    running = set(rollouts.state()["buffer"]["begun"])
    assert dropped - running
    assert not (dropped - running) & asked
    await rollouts.close()
    await resumed.close()


async def test_a_prompt_that_was_given_up_is_not_asked_again_after_a_resume() -> None:
    engines = TypingEngines(lambda index, number: 500 if index == 1 else 5)
    spec = SPEC.model_copy(update={"max_staleness": 1})
    rollouts = source(engines, spec)
    batches = await steps(rollouts, engines, range(3))
    assert batches[2].measure()["rollout/dropped/staleness/too_old"] == 1
    again = engines.again()
    resumed = source(again, spec)
    await resumed.restore(json.loads(json.dumps(rollouts.state())))
    await steps(resumed, again, range(3, 6))
    assert 1 not in {int(request.tokens[0]) for request in again.requests}
    await rollouts.close()
    await resumed.close()


async def test_a_checkpoint_has_requests_of_those_begun_and_a_resume_begins_with_them() -> None:
    engines = TypingEngines(skewed)
    rollouts = source(engines)
    *_, batch = await steps(rollouts, engines, range(2))
    state = json.loads(json.dumps(rollouts.state()))
    begun = set(state["buffer"]["begun"])
    finished = len(state["buffer"]["finished"]) // SPEC.samples_per_prompt
    assert begun and finished
    assert batch.measure()["rollout/buffer/groups"] == len(begun) + finished
    assert set(map(int, state["buffer"]["requests"])) <= begun
    again = engines.again()
    resumed = source(again)
    await resumed.restore(state)
    await steps(resumed, again, [2])
    asked = list(dict.fromkeys(int(request.tokens[0]) for request in again.requests))
    assert set(asked[: len(begun)]) == begun
    assert (len(asked) - len(begun)) % 5 == 0, "others come five at a time"
    await rollouts.close()
    await resumed.close()


async def test_older_tokens_can_be_masked() -> None:
    engines = TypingEngines(skewed)
    rollouts = source(engines, SPEC.model_copy(update={"mask_off_policy": True}))
    for version, batch in enumerate(await steps(rollouts, engines, range(6))):
        older = total = 0
        for one in samples([batch]):
            for span in one.versions:
                mask = set(one.loss_mask[span.start : span.end].tolist())
                assert mask == {1.0 if span.version == version else 0.0}
                older += (span.end - span.start) * (span.version < version)
            total += len(one.tokens)
        assert batch.measure()["rollout/off_policy_frac"] == pytest.approx(older / total)
    await rollouts.close()


@pytest.mark.parametrize("after", [1, 2, 3])
async def test_a_resumed_job_loses_nothing_and_uses_nothing_twice(after: int) -> None:
    engines = TypingEngines(skewed)
    rollouts = source(engines)
    before = await steps(rollouts, engines, range(after))
    state = json.loads(json.dumps(rollouts.state()))
    on = await steps(rollouts, engines, range(after, after + 4))
    again = engines.again()
    resumed = source(again)
    await resumed.restore(state)
    assert json.loads(json.dumps(resumed.state())) == state
    rest = await steps(resumed, again, range(after, after + 4))
    used = [index for batch in (*before, *rest) for index in indices(batch)]
    assert len(used) == len(set(used))
    kept = {one.id: one for one in samples(on)}
    begun_before = [one for one in samples(rest) if one.oldest_version < after]
    assert begun_before
    for one in begun_before:
        assert one.tokens.tolist() == kept[one.id].tokens.tolist()
        first, other = one.versions[0], kept[one.id].versions[0]
        assert first == other or len(one.versions) == 1
    await rollouts.close()
    await resumed.close()


async def test_a_job_without_a_buffer_generates_the_parked_requests_again() -> None:
    engines = TypingEngines(skewed)
    rollouts = source(engines)
    [first] = await steps(rollouts, engines, [0])
    plain = SynchronousSource(SPEC, policy(engines), Prompts().ahead(5), Filters([]))  # type: ignore[arg-type]
    await plain.restore(rollouts.state())
    second = await plain.next(1)
    assert not set(indices(first)) & set(indices(second))
    assert "buffer" not in plain.state()
    await rollouts.close()
    await plain.close()


async def test_samples_that_are_too_old_are_discarded_and_counted() -> None:
    endless = 10**9
    engines = TypingEngines(lambda index, number: endless if index == 1 else 5)
    rollouts = source(engines, SPEC.model_copy(update={"max_staleness": 1, "max_response_tokens": endless}))
    batches = await steps(rollouts, engines, range(6))
    dropped = [batch.measure().get("rollout/dropped/staleness/too_old", 0) for batch in batches]
    assert sum(dropped) == 1
    assert 1 not in [index for batch in batches for index in indices(batch)]
    await rollouts.close()


async def test_a_strategy_gives_groups_up_and_others_take_their_place() -> None:
    class FinishedOnly:
        def order(self, buffered: Sequence[Buffered], version: int) -> list[int]:
            return [one.index for one in buffered if one.finished]

    engines = TypingEngines(skewed)
    rollouts = source(engines, strategy=FinishedOnly())
    batches = await steps(rollouts, engines, range(6))
    given_up = sum(batch.measure().get("rollout/dropped/buffer/given_up", 0) for batch in batches)
    asked = {int(request.tokens[0]) for request in engines.requests}
    used = {index for batch in batches for index in indices(batch)}
    buffer = rollouts.state()["buffer"]
    left = {*buffer["begun"], *(one["index"] for one in buffer["finished"])}
    assert given_up == len(asked - used - left) > 0
    assert all(len(one.versions) == 1 for one in samples(batches))
    await rollouts.close()


async def test_a_batch_is_full_whatever_a_strategy_leaves_out() -> None:
    class UnknownGroups:
        def order(self, buffered: Sequence[Buffered], version: int) -> list[int]:
            return [99, 99]

    engines = TypingEngines(skewed)
    rollouts = source(engines, strategy=UnknownGroups())
    for batch in await steps(rollouts, engines, range(4)):
        assert len(batch.groups) == 3
    await rollouts.close()


async def test_filters_also_judge_continued_samples() -> None:
    engines = TypingEngines(skewed)
    rollouts = source(engines, filters=[("odd", drop_even)])
    batches = await steps(rollouts, engines, range(5))
    used: Counter[int] = Counter(index for batch in batches for index in indices(batch))
    assert all(index % 2 for index in used)
    assert set(used.values()) == {1}
    await rollouts.close()


async def test_starvation_says_how_many_were_tried() -> None:
    def nothing(group: Group) -> Drop:
        return Drop("all_0")

    engines = TypingEngines(skewed)
    spec = SPEC.model_copy(update={"oversample": SPEC.batch_size, "max_attempts": 2})
    starved = source(engines, spec, [("nonzero_std", nothing)])
    with pytest.raises(JobError, match=r"of 6 groups tried 0 were kept, 3 .* 6 by nonzero_std \(all_0\)"):
        await starved.next(0)
    await starved.close()


async def test_an_error_in_a_filter_reaches_the_loop() -> None:
    def faulty(group: Group) -> None:
        raise ZeroDivisionError("in a filter")

    engines = TypingEngines(skewed)
    rollouts = source(engines, filters=[("faulty", faulty)])
    with pytest.raises(ZeroDivisionError, match="in a filter"):
        await rollouts.next(0)
    await rollouts.close()


async def test_time_in_which_the_engines_stand_still_is_not_a_samples(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    real, ahead = loop.time, 0.0
    monkeypatch.setattr(loop, "time", lambda: real() + ahead)
    engines = TypingEngines(lambda index, number: 60 if index == 1 else 5)
    rollouts = source(engines, SPEC.model_copy(update={"request_timeout": 60.0, "max_staleness": 20}))
    batches = await steps(rollouts, engines, [0])
    ahead = 100.0  # the trainer works
    await asyncio.sleep(0)
    batches += await steps(rollouts, engines, range(1, 15))
    assert 1 in [index for batch in batches for index in indices(batch)]
    assert not any("rollout/dropped/generation/timeout" in batch.measure() for batch in batches)
    await rollouts.close()


class Twice:
    """Two turns, with a token given in between."""

    async def run(self, session: Session) -> Trajectory:
        one = Trajectory(session.prompt.tokens)
        one.add(await session.generate(one.tokens()))
        one.give([5])
        one.add(await session.generate(one.tokens()))
        return one


def in_turns(index: int, number: int) -> int:
    """Tokens up to the end of a turn; numbers 2 and 3 are the second turns."""
    return 6 if number < 2 else 8 if index % 3 else 150


def twice(engines: TypingEngines, max_staleness: int) -> PartialSource:
    spec = SPEC.model_copy(update={"max_staleness": max_staleness})
    asked = policy(engines, rollout=Twice())  # type: ignore[arg-type]
    return PartialSource(spec, asked, Prompts().ahead(5), Filters([]), FIFO)


@pytest.mark.parametrize("max_staleness", [1, 30])
async def test_executions_of_several_turns_go_on_in_mid_turn(max_staleness: int) -> None:
    engines = TypingEngines(in_turns)
    rollouts = twice(engines, max_staleness)
    batches = await steps(rollouts, engines, range(25))
    for version, batch in enumerate(batches):
        for one in samples([batch]):
            assert len(one.tokens) == in_turns(one.prompt.index, 2)
            assert one.loss_mask.tolist().count(0) == 1
            assert version - one.oldest_version <= max_staleness
    assert any(len(one.versions) > 1 for one in samples(batches))
    await rollouts.close()


async def test_executions_of_several_turns_go_on_in_mid_turn_after_a_resume() -> None:
    engines = TypingEngines(in_turns)
    rollouts = twice(engines, 30)
    before: list[Batch] = []
    over: set[str] = set()
    while not any(key.endswith(".1") for key in over):  # until a second turn is under way
        before += await steps(rollouts, engines, [len(before)])
        state = json.loads(json.dumps(rollouts.state()))
        saved = state["buffer"]["requests"].values()
        over = {key.partition("/")[0] for requests in saved for key in requests}
    again = engines.again()
    resumed = twice(again, 30)
    await resumed.restore(state)
    after = await steps(resumed, again, range(len(before), len(before) + 5))
    first_turns = {one.id for one in again.requests if len(one.tokens) == PROMPT}
    finished = {key for key in over if key.endswith(".0") and key.replace(".0", ".1") in over}
    assert finished
    assert not first_turns & finished
    used = [index for batch in (*before, *after) for index in indices(batch)]
    assert len(used) == len(set(used))
    await rollouts.close()
    await resumed.close()
