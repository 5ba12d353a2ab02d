"""Runs the environment of a row: the policy acts, and the environment answers and rewards it.

reset ─▶ first messages ─▶ action ─▶ step ─▶ done? ─yes─▶ reward
                             ▲                │ no
                             └─ observation ◀─┘
"""

import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, NamedTuple

from pydantic import Field

from rlrun.plugins.engines import Address
from rlrun.plugins.environments.declared import METADATA_KEY
from rlrun.plugins.environments.pool import EnvironmentPool
from rlrun.plugins.environments.process import EnvironmentFailure, EnvironmentProcess
from rlrun.plugins.failures import PolicyError
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.rollouts.agent.endpoint import Endpoint, Served, relayed_engines
from rlrun.plugins.rollouts.agent.record import Record
from rlrun.plugins.rollouts.agent.turn_deadline import TurnDeadline
from rlrun.plugins.rollouts.conversation import TurnByTurn
from rlrun.plugins.session import Session
from rlrun.plugins.types import Message, Status
from rlrun.specs.engine_names import EngineNames
from rlrun.specs.sections.section import Section

logger = logging.getLogger(__name__)


class EnvironmentRolloutParams(Section):
    """The limits of an execution."""

    max_turns: int = Field(default=16, ge=1)
    """Number of actions in an execution; one that has not ended by then is truncated, with its rewards so
    far."""
    cross_entropy: float = Field(default=0.0, ge=0)
    """Weight of the cross-entropy of what the environment says, beside the loss of the policy's own tokens:
    the policy also learns to predict it. 0: only its own tokens are trained."""
    engines: EngineNames = ()
    """Names of `[[engines]]` that environments may ask, for instance a simulated user or a judge:
    `await task.engine("user").chat(messages)`, where `task` is what `reset` received."""
    step_timeout: float = Field(default=60.0, gt=0)
    """Seconds for one `reset` or `step`. When one takes longer, its process is killed: its executions fail,
    and the next ones get a new process."""


class Environment:
    """The policy acts in the environment of the row, which the data source `environment` names.

    The sum of an execution's rewards is `info["reward"]`, which the reward `noted` reads; the reward of each
    action is that of its turn (`turn_rewards`). With several players the policy plays all of them: each
    player's conversation is a training sample with this player's reward.
    """

    Params = EnvironmentRolloutParams
    api_version = 1

    def __init__(self, params: EnvironmentRolloutParams) -> None:
        self.params = params
        self._pool = EnvironmentPool()
        self._endpoint = Endpoint()
        """Passes requests of environments on to `engines`."""

    async def run(self, session: Session) -> list[Trajectory]:
        """Runs one execution. Returns the conversation of each player that acted, the last one last."""
        key = session.prompt.row.metadata.get(METADATA_KEY)
        async with self._pool.execution(key, session.id) as process, self._engines(session) as engines:
            return await self._act(session, process, engines)

    async def close(self) -> None:
        """Ends the processes of all environments."""
        await self._pool.close()
        await self._endpoint.close()

    @asynccontextmanager
    async def _engines(self, session: Session) -> AsyncIterator[dict[str, Address]]:
        """Yields the addresses of `engines` for one execution. Raises the error of an engine that did not
        answer, whatever the environment made of it.
        """
        if not (names := self.params.engines):
            yield {}
            return
        record = Record(session.chat, "keep")
        served = Served(session, record, TurnDeadline(), "auto", max_turns=0, engines=names)
        key = self._endpoint.open(served)
        try:
            yield relayed_engines(await self._endpoint.url(), key, names)
        except EnvironmentFailure as error:
            raise served.error or error from error
        finally:
            self._endpoint.close_key(key)
        if served.error is not None:
            raise served.error

    async def _act(
        self, session: Session, process: EnvironmentProcess, engines: Mapping[str, Address]
    ) -> list[Trajectory]:
        seconds = self.params.step_timeout
        first = await process.call("reset", seconds, episode=session.id, task=_task(session, engines))
        talks = {0: TurnByTurn(session, _beginning(session, first))}
        scores: dict[int, list[_Score]] = defaultdict(list)
        info: dict[str, Any] = {}
        player, order, ended = 0, [0], False
        for _ in range(self.params.max_turns):
            talk = talks[player]
            answer = await talk.ask()
            if talk.trajectory.status is not Status.COMPLETED:
                break
            action = session.chat.plain(answer)
            try:
                turn = await process.call("step", seconds, episode=session.id, action=action)
            except PolicyError as error:
                logger.info("execution %s ends with an error of the policy: %s", session.id, error)
                scores[player].append(_Score(_turn(talks, player), error.reward))
                info |= {"policy_error": 1}
                order.append(player)
                ended = True
                break
            for rewarded, reward in _rewards(turn["rewards"], player).items():
                scores[rewarded].append(_Score(_turn(talks, rewarded), reward))
            info |= turn["info"]
            order.append(player)
            ended = turn["done"]
            player = turn["player"]
            if ended:
                break
            if player not in talks:
                talks[player] = TurnByTurn(session, Trajectory(session.chat.render(turn["messages"])))
            elif not talks[player].give(turn["messages"], cross_entropy=self.params.cross_entropy):
                break
        return _finished(talks, order, scores, info, ended)


class _Score(NamedTuple):
    """A reward, and the number of the player's turn that it belongs to."""

    turn: int
    reward: float


def _turn(talks: Mapping[int, TurnByTurn], player: int) -> int:
    """Returns the number of the player's latest turn; 0, the first one, for a player who has not acted."""
    return max(0, len(talks[player].trajectory.turns) - 1) if player in talks else 0


def _beginning(session: Session, first: Sequence[Message] | None) -> Trajectory:
    """Returns the conversation before the first action: the environment's messages, or the row's prompt."""
    return Trajectory(session.prompt.tokens if first is None else session.chat.render(first))


def _finished(
    talks: Mapping[int, TurnByTurn],
    order: Sequence[int],
    scores: Mapping[int, Sequence[_Score]],
    info: Mapping[str, Any],
    ended: bool,
) -> list[Trajectory]:
    """Returns the sample of each player, with its rewards; the player that acted last comes last.

    An execution whose environment did not end it is truncated, unless rlrun aborted it.
    """
    latest = {player: number for number, player in enumerate(order)}
    players = sorted(talks, key=lambda player: latest.get(player, -1))
    trajectories = []
    for player in players:
        trajectory = talks[player].trajectory
        if not trajectory.turns and len(players) > 1:
            continue
        own, rewards = scores.get(player, ()), [0.0] * len(trajectory.turns)
        trajectory.info = {**info, "reward": sum(score.reward for score in own), "turns": len(rewards)}
        for turn, reward in own if rewards else ():
            rewards[turn] += reward
        trajectory.turn_rewards = rewards
        if len(players) > 1:
            trajectory.info["player"] = player
        if not ended and trajectory.status is Status.COMPLETED:
            trajectory.status = Status.TRUNCATED
        trajectories.append(trajectory)
    return trajectories


def _rewards(rewards: Mapping[str, float], player: int) -> dict[int, float]:
    """Returns the rewards by player; one without a player's name is that of the player who acted."""
    return {int(name) if name else player: reward for name, reward in rewards.items()}


def _task(session: Session, engines: Mapping[str, Address]) -> dict[str, Any]:
    row = session.prompt.row
    messages = [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else list(row.prompt)
    metadata = {name: value for name, value in row.metadata.items() if name != METADATA_KEY}
    return {
        "id": session.id,
        "messages": messages,
        "label": row.label,
        "metadata": metadata,
        "seed": session.seed,
        "base_url": "",
        "api_key": "",
        "engines": {name: asdict(address) for name, address in engines.items()},
    }
