"""What a rollout asks of the policy, and what becomes of what it leaves."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from rlrun.plugins.failures import Failure, InfrastructureError
from rlrun.plugins.generation import Generation, Sampling, Trajectory
from rlrun.plugins.session import Session, SessionGroup
from rlrun.plugins.types import Status, VersionSpan
from rlrun.runner.contracts import environment
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.contracts.environment import Environment
from rlrun.runner.contracts.errors import EngineError, JobError
from rlrun.runner.rollouts import deadlines
from rlrun.runner.rollouts.executions import Executions
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.group_producer import GroupProducer
from rlrun.runner.rollouts.settings import RolloutSettings
from rlrun.runner.rollouts.tally import Tally
from tests.resolved_specs import resolved_rollout
from tests.runner.loop_fakes import Engines, policy, prompt

WANTED = RolloutSettings(
    "rollout",
    samples=2,
    sampling=Sampling(max_new_tokens=8),
    max_sample_tokens=11,
    max_turn_tokens=8,
    timeout=5.0,
)


class ScriptedTurns:
    """Each sample has the number of turns that is scripted for it, and a pause after each turn."""

    def __init__(self, turns: Sequence[int] = (2, 2), pauses: Sequence[int] = (0, 0)) -> None:
        self.turns = turns
        self.pauses = pauses

    async def run(self, session: Session) -> Trajectory:
        number = int(session.id.rpartition("-")[2])
        one = Trajectory(session.prompt.tokens)
        for _ in range(self.turns[number]):
            one.add(await session.generate(one.tokens()))
            for _ in range(self.pauses[number]):
                await asyncio.sleep(0)
            one.give([7, 7])
        return one


class TwoTrajectories:
    async def run(self, session: Session) -> list[Trajectory]:
        trajectories = []
        for begin in ([1, 2], [3]):
            one = Trajectory(np.array(begin, dtype=np.int32))
            one.add(await session.generate(one.tokens()))
            trajectories.append(one)
        return trajectories


def with_wrong_weights() -> Trajectory:
    one = Trajectory(np.zeros(3, dtype=np.int32))
    one.give([4, 5], cross_entropy=[1.0])
    return one


class FailingRollout:
    def __init__(self, error: Exception | None = None, left: object = None) -> None:
        self.error, self.left = error, left

    async def run(self, session: Session) -> object:
        if self.error is not None and session.id.endswith("-0"):
            raise self.error
        if self.left is not None:
            return self.left
        one = Trajectory(session.prompt.tokens)
        one.add(await session.generate(one.tokens()))
        return one


class HangingRollout:
    async def run(self, session: Session) -> Trajectory:
        if session.id.endswith("-0"):
            await asyncio.Event().wait()
        one = Trajectory(session.prompt.tokens)
        one.add(await session.generate(one.tokens()))
        return one


async def test_a_turn_goes_on_from_what_was_said_before() -> None:
    engines = Engines()
    [[one], _] = await Executions(policy(engines, rollout=ScriptedTurns()), WANTED).run(
        prompt(5), engines.generate
    )
    first, second = [request for request in engines.requests if request.session == "rollout-5/0"]
    assert second.tokens.tolist() == [5, 5, 5, *one.turns[0].tokens, 7, 7]
    assert (first.id, second.id) == ("rollout-5-0.0", "rollout-5-0.1")
    tokens, log_probs, mask, versions = one.response()
    assert tokens.tolist() == [*one.turns[0].tokens, 7, 7, *one.turns[1].tokens]
    assert mask.tolist() == [1, 0, 0, 1]
    assert log_probs.tolist() == [one.turns[0].log_probs[0], 0, 0, one.turns[1].log_probs[0]]
    assert versions == (VersionSpan(-1, 0, 4),)


async def test_seeds_depend_on_the_sample_and_the_turn_alone() -> None:
    engines, others = Engines(), Engines()
    await Executions(policy(engines, rollout=ScriptedTurns()), WANTED).run(prompt(5), engines.generate)
    await Executions(policy(others, rollout=ScriptedTurns(pauses=(3, 0))), WANTED).run(
        prompt(5), others.generate
    )
    seeds = {request.id: request.seeds for request in engines.requests}
    assert seeds == {request.id: request.seeds for request in others.requests}
    assert len(set(seeds.values())) == 4


async def test_what_may_be_made_is_cut_to_what_there_is_room_for() -> None:
    engines = Engines()
    [[one], _] = await Executions(policy(engines, rollout=ScriptedTurns((9, 1))), WANTED).run(
        prompt(0), engines.generate
    )
    asked = [request for request in engines.requests if request.session == "rollout-0/0"]
    assert [request.sampling.max_new_tokens for request in asked] == [8, 5, 2]
    assert one.status is Status.TRUNCATED
    assert len(one.response()[0]) == 7, "the last thing that was given is no part of it"


async def test_in_lockstep_batches_do_not_depend_on_who_is_first() -> None:
    orders = []
    for pauses in ((0, 4), (3, 0)):
        engines = Engines()
        executions = Executions(policy(engines, rollout=ScriptedTurns((2, 3), pauses)), WANTED)
        await executions.run_batch([prompt(0), prompt(1)], engines.generate_batch)
        assert engines.batches == [4, 4, 2]
        orders.append([request.id for request in engines.requests])
    assert orders[0] == orders[1]
    assert orders[0][:4] == ["rollout-0-0.0", "rollout-0-1.0", "rollout-1-0.0", "rollout-1-1.0"]


async def test_what_engines_refuse_ends_a_wave() -> None:
    engines = Engines()
    engines.broken = {1}
    executions = Executions(policy(engines, rollout=ScriptedTurns()), WANTED)
    with pytest.raises(EngineError, match="500"):
        await executions.run_batch([prompt(0), prompt(1)], engines.generate_batch)


async def test_samples_of_one_execution_share_its_id_and_have_prompts_of_their_own() -> None:
    group = await answer(TwoTrajectories(), Engines(), Tally())
    assert [one.id for one in group.samples] == ["3-0.0", "3-0.1", "3-1.0", "3-1.1"]
    assert [one.execution_id for one in group.samples] == ["3-0", "3-0", "3-1", "3-1"]
    assert [one.prompt.tokens.tolist() for one in group.samples[:2]] == [[1, 2], [3]]
    assert group.samples[0].prompt.row is group.prompt.row


class LosesItsSandbox:
    """Execution 0 of each prompt loses its sandbox after its first turn, so many times."""

    def __init__(self, losses: int) -> None:
        self.left = losses

    async def run(self, session: Session) -> Trajectory:
        one = Trajectory(session.prompt.tokens)
        one.add(await session.generate(one.tokens()))
        if session.id.endswith("-0") and self.left:
            self.left -= 1
            raise InfrastructureError("the container is gone", Failure.SANDBOX)
        return one


@pytest.mark.parametrize(
    ("losses", "retries", "kept", "counted"),
    [
        (0, 2, ["3-0", "3-1"], {"executions": 2, "lost": 0, "retried": 0, "failures": {}}),
        (2, 2, ["3-0", "3-1"], {"executions": 2, "lost": 0, "retried": 1, "failures": {}}),
        (3, 2, ["3-1"], {"executions": 2, "lost": 1, "retried": 1, "failures": {Failure.SANDBOX: 1}}),
        (1, 0, ["3-1"], {"executions": 2, "lost": 1, "retried": 0, "failures": {Failure.SANDBOX: 1}}),
    ],
)
async def test_an_execution_runs_again_after_a_failure_of_the_infrastructure(
    losses: int, retries: int, kept: list[str], counted: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "FIRST_PAUSE", 0.0)
    tally, engines = Tally(), Engines()
    group = await answer(LosesItsSandbox(losses), engines, tally, Environment(retries=retries))
    assert group is not None
    assert [one.id for one in group.samples] == kept
    assert {name: getattr(tally, name) for name in counted} == counted
    ids = [request.id for request in engines.requests]
    assert len(set(ids)) == len(ids) == 2 + min(losses, retries), "no request's id is used again"
    seeds = {request.seeds for request in engines.requests}
    assert len(seeds) == len(ids), "a repeated execution draws anew"


async def test_an_environment_that_always_fails_ends_the_job_by_name() -> None:
    spec = resolved_rollout(samples_per_prompt=2)
    context = replace(
        policy(Engines(), rollout=FailingRollout(left="x")), environment=Environment("the agent 'browser'")
    )
    producer = GroupProducer(spec, context, Filters([]))
    with pytest.raises(JobError, match="the agent 'browser' fails as a whole: of 32 executions in a row 32"):
        for index in range(16):
            await producer.produce(prompt(index), Tally)


@pytest.mark.parametrize(
    ("rollout", "failure"),
    [
        (FailingRollout(KeyError("city")), "KeyError: 'city'"),
        (FailingRollout(EngineError("down")), "EngineError: down"),
        (HangingRollout(), r"TimeoutError: it took longer than rollout.request_timeout = 0.3 s"),
    ],
)
async def test_an_execution_that_fails_fails_alone(
    rollout: object, failure: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadlines, "GRACE_SECONDS", 0.2)
    tally = Tally()
    group = await answer(rollout, Engines(), tally)
    assert [one.id for one in group.samples] == ["3-1"]
    assert (tally.failed, tally.failure) == (1, failure)
    assert f"execution 3-0 failed and is left out: {failure}" in caplog.text


class SlowTurn(Engines):
    """The second turn of execution 0 takes until it is aborted, or for ever."""

    def __init__(self, *, deaf: bool = False) -> None:
        super().__init__()
        self.deaf = deaf

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        if not request.id.endswith("-0.1"):
            return await super().generate(request)
        self.requests.append(request)
        await self._abort.wait()
        return [self._generation(seed, "abort", self.version) for seed in request.seeds]

    async def abort(self, request: GenerateRequest) -> None:
        assert request.id == "rollout-3-0.1"
        if not self.deaf:
            await super().abort(request)


async def test_a_late_turn_is_aborted_with_the_tokens_of_all_turns() -> None:
    engines = SlowTurn()
    executions = Executions(policy(engines, rollout=ScriptedTurns((3, 2))), replace(WANTED, timeout=0.3))
    [[late], [other]] = await executions.run(prompt(3), engines.generate)
    assert (late.status, other.status) == (Status.ABORTED, Status.COMPLETED)
    first, second = late.turns
    assert late.response()[0].tolist() == [*first.tokens, 7, 7, *second.tokens]
    assert [one.id for one in engines.requests if "-0." in one.id] == ["rollout-3-0.0", "rollout-3-0.1"]


class TurnsTogether:
    """The same as ScriptedTurns, all executions of a prompt together."""

    def __init__(self, turns: Sequence[int]) -> None:
        self.alone = ScriptedTurns(turns)

    async def run_group(self, group: SessionGroup) -> list[Trajectory]:
        return list(await asyncio.gather(*map(self.alone.run, group.sessions)))


class AskedTogether:
    """Two turns, each a single request of the whole group."""

    async def run_group(self, group: SessionGroup) -> list[Trajectory]:
        talks = [Trajectory(group.prompt.tokens) for _ in group.sessions]
        for _ in range(2):
            answers = await group.generate(talks[0].tokens())
            for talk, made in zip(talks, answers, strict=True):
                talk.add(made)
        return talks


@pytest.mark.parametrize("rollout", [ScriptedTurns((2, 2)), TurnsTogether((2, 2))])
@pytest.mark.parametrize("deaf", [False, True])
async def test_a_late_turn_counts_as_late_and_costs_no_other_execution(
    monkeypatch: pytest.MonkeyPatch, rollout: object, deaf: bool
) -> None:
    monkeypatch.setattr(deadlines, "GRACE_SECONDS", 0.2)
    tally = Tally()
    group = await answer(rollout, SlowTurn(deaf=deaf), tally)
    assert [one.id for one in group.samples] == ["3-1"]
    assert tally.dropped_samples["generation", "timeout"] == 1
    assert tally.failed == 0


@pytest.mark.parametrize("deaf", [False, True])
async def test_executions_that_run_together_keep_the_tokens_of_a_late_turn(
    monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    monkeypatch.setattr(deadlines, "GRACE_SECONDS", 0.2)
    engines = SlowTurn(deaf=deaf)
    asked = policy(engines, rollout=TurnsTogether((3, 2)))
    executions = Executions(asked, replace(WANTED, timeout=0.3))
    [[late], [other]] = await executions.run(prompt(3), engines.generate)
    assert (late.status, other.status) == (Status.ABORTED, Status.COMPLETED)
    assert (len(late.turns), len(other.turns)) == (1 if deaf else 2, 2)


@pytest.mark.parametrize("deaf", [False, True])
async def test_a_late_request_of_a_whole_group_keeps_the_tokens_of_earlier_ones(
    monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    class SlowSecond(SlowTurn):
        async def generate(self, request: GenerateRequest) -> list[Generation]:
            return await super().generate(replace(request, id=request.id.replace("-3.1", "-3-0.1")))

        async def abort(self, request: GenerateRequest) -> None:
            await super().abort(replace(request, id="rollout-3-0.1"))

    monkeypatch.setattr(deadlines, "GRACE_SECONDS", 0.2)
    engines = SlowSecond(deaf=deaf)
    executions = Executions(policy(engines, rollout=AskedTogether()), replace(WANTED, timeout=0.3))
    left = await executions.run(prompt(3), engines.generate)
    assert [one.status for [one] in left] == [Status.ABORTED] * 2
    assert [len(one.turns) for [one] in left] == [1 if deaf else 2] * 2


async def test_a_group_that_hangs_without_a_request_is_dropped_and_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class HangingGroup:
        async def run_group(self, group: SessionGroup) -> list[Trajectory]:
            await asyncio.Event().wait()
            return []

    monkeypatch.setattr(deadlines, "GRACE_SECONDS", 0.2)
    tally = Tally()
    assert await answer(HangingGroup(), Engines(), tally) is None
    assert tally.dropped["generation", "timeout"] == 1
    why = "TimeoutError: it took longer than rollout.request_timeout = 0.3 s"
    assert tally.failure == why
    assert f"all executions of prompt 3 failed and are left out: {why}" in caplog.text


@pytest.mark.parametrize(
    ("left", "failure"),
    [
        (["42"], "returned '42', which is not a Trajectory"),
        ([], "returned nothing"),
        (Trajectory(np.zeros(0, dtype=np.int32)), "without a prompt"),
        (Trajectory(np.zeros(5000, dtype=np.int32)), "has 5000 tokens; the maximum is"),
        (
            Trajectory(np.zeros(3, dtype=np.int32), turn_rewards=[1.0]),
            "the rollout FailingRollout returned 1 turn_rewards for 0 turns of the policy",
        ),
        (
            with_wrong_weights(),
            "the rollout FailingRollout returned cross-entropy weights of shape (1,) for 2 tokens",
        ),
    ],
)
async def test_what_is_no_trajectory_is_a_failure(left: object, failure: str) -> None:
    tally = Tally()
    assert await answer(FailingRollout(left=left), Engines(), tally) is None
    assert failure in tally.failure
    assert tally.dropped["generation", "failed"] == 1
    with pytest.raises(JobError, match="The last failure: ValueError:"):
        tally.accept_partial_batch([], 1)


async def test_an_execution_that_is_no_longer_wanted_gets_an_empty_answer() -> None:
    cancelled, engines = asyncio.Event(), Engines()
    made: list[Generation] = []

    class CancelledRequest:
        async def run_group(self, group: SessionGroup) -> list[Trajectory]:
            cancelled.set()
            made.extend(await group.generate(group.sessions[0].prompt.tokens))
            raise AssertionError("nobody reads what is left")

    spec = resolved_rollout(samples_per_prompt=2)
    producer = GroupProducer(spec, policy(engines, rollout=CancelledRequest()), Filters([]))
    assert await producer.produce(prompt(0), Tally, cancelled) is None
    assert [one.finish for one in made] == ["abort", "abort"]
    assert not engines.requests


async def answer(rollout: object, engines: Engines, tally: Tally, of: Environment | None = None):
    spec = resolved_rollout(samples_per_prompt=2, max_response_tokens=8, request_timeout=0.3)
    context = replace(policy(engines, rollout=rollout), environment=of or Environment())
    producer = GroupProducer(spec, context, Filters([]))
    return await producer.produce(prompt(3), lambda: tally, asyncio.Event())
