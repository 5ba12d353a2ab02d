"""Trajectories that an agent assembled itself: their tokens, masks and log-probs, checked where they arrive.

They replace what the endpoint recorded of the execution, for agents that mask tokens by a rule of their own,
or that ask the engines in another way.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, ValidationError

from rlrun.plugins.generation import Generation, Trajectory
from rlrun.plugins.session import Session
from rlrun.plugins.types import Status, VersionSpan
from rlrun.specs.problems.messages import describe_errors
from rlrun.specs.sections.section import Section

if TYPE_CHECKING:
    import numpy as np
else:
    from rlrun.plugins import lazy_numpy as np

_MAX_LOG_PROB = 1e-3
"""Engines round a log-prob of 0 upwards by less than this."""


class TrajectoryError(ValueError):
    """A trajectory that an agent gave cannot be trained on."""


class OwnTrajectory(Section):
    """One training sample, as JSON."""

    prompt_tokens: tuple[int, ...] = Field(min_length=1)
    """What the policy saw before its first token."""
    response_tokens: tuple[int, ...] = Field(min_length=1)
    """`[R]` all tokens behind the prompt."""
    loss_mask: tuple[Literal[0, 1], ...]
    """`[R]` 1 on tokens that the policy generated and that are trained."""
    log_probs: tuple[float, ...]
    """`[R]` the engine's log-prob of each token; it counts where `loss_mask` is 1."""
    versions: int | tuple[tuple[int, int, int], ...]
    """The version of the weights that generated the tokens, or spans `[version, start, end]` of the response
    without gaps, as `weight_versions` of `/inference/v1/generate`."""
    status: Literal["completed", "truncated"] = "completed"
    """How the sample ended."""


class OwnTrajectories(Section):
    """The body of `POST /v1/trajectories`: all training samples of an execution."""

    trajectories: tuple[OwnTrajectory, ...] = Field(min_length=1, max_length=256)


def read_trajectories(body: Any, session: Session, begun: int) -> list[Trajectory]:
    """Returns the trajectories of a request. `begun`: the version of the weights when the execution began.

    Raises TrajectoryError, which names the trajectory, for one that cannot be trained on: lengths that
    differ, ids that the tokenizer does not have, log-probs that are none, and versions of weights that the
    engines have not served since the execution began.
    """
    if not isinstance(body, dict):
        raise TrajectoryError("the body must be an object with `trajectories`")
    try:
        given = OwnTrajectories.model_validate(body).trajectories
    except ValidationError as error:
        raise TrajectoryError(
            f"execution {session.id}: {describe_errors(error, OwnTrajectories, body)}"
        ) from None
    trajectories = []
    for number, own in enumerate(given):
        if problem := _problem(own, session, begun):
            raise TrajectoryError(f"execution {session.id}, trajectories.{number}: {problem}")
        trajectories.append(_trajectory(own))
    return trajectories


def _problem(own: OwnTrajectory, session: Session, begun: int) -> str | None:
    """Returns why a trajectory cannot be trained on; None if it can."""
    length = len(own.response_tokens)
    for name in ("loss_mask", "log_probs"):
        if len(getattr(own, name)) != length:
            return f"{name} has {len(getattr(own, name))} values for {length} response_tokens"
    for name in ("prompt_tokens", "response_tokens"):
        if problem := _unknown_token(name, getattr(own, name), session):
            return problem
    if not any(own.loss_mask):
        return "loss_mask is 0 everywhere, so nothing of it is trained: leave it out"
    for position, (log_prob, mask) in enumerate(zip(own.log_probs, own.loss_mask, strict=True)):
        if mask and not (math.isfinite(log_prob) and log_prob <= _MAX_LOG_PROB):
            return f"log_probs.{position} is {log_prob}, which is no log-prob"
    if length > (most := session.sampling.max_new_tokens):
        return f"it has {length} response_tokens; rollout.max_response_tokens is {most}"
    if (total := len(own.prompt_tokens) + length) > session.max_tokens:
        return f"it has {total} tokens with its prompt; a sample may have {session.max_tokens}"
    return _wrong_versions(own, begun, session.version)


def _unknown_token(name: str, tokens: Sequence[int], session: Session) -> str | None:
    size, placeholder = session.chat.vocab_size, session.chat.image_placeholder
    for position, token in enumerate(tokens):
        if not 0 <= token < size:
            return f"{name}.{position} is {token}; the tokenizer's ids are 0 to {size - 1}"
        if token == placeholder:
            return f"{name}.{position} is {token}, an image's placeholder: token ids bring no images"
    return None


def _wrong_versions(own: OwnTrajectory, begun: int, newest: int) -> str | None:
    end = 0
    for version, start, stop in _spans(own):
        if start != end or stop <= start:
            return f"versions do not cover the response: {[version, start, stop]} follows position {end}"
        if not begun <= version <= newest:
            return f"versions has {version}; since the execution began, engines served {begun} to {newest}"
        end = stop
    if end != len(own.response_tokens):
        return f"versions end at {end}, and the response at {len(own.response_tokens)}"
    return None


def _spans(own: OwnTrajectory) -> Sequence[tuple[int, int, int]]:
    if isinstance(own.versions, int):
        return [(own.versions, 0, len(own.response_tokens))]
    return own.versions


def _trajectory(own: OwnTrajectory) -> Trajectory:
    """Returns the trajectory: each run of trained tokens is an answer of the policy, and each other one is
    given.
    """
    trajectory = Trajectory(np.array(own.prompt_tokens, dtype=np.int32), prompt_images=())
    tokens = np.array(own.response_tokens, dtype=np.int32)
    log_probs = np.array(own.log_probs, dtype=np.float32)
    for mask, run in groupby(range(len(tokens)), key=lambda position: own.loss_mask[position]):
        positions = list(run)
        start, end = positions[0], positions[-1] + 1
        if mask:
            versions = tuple(
                VersionSpan(version, max(first, start) - start, min(last, end) - start)
                for version, first, last in _spans(own)
                if first < end and last > start
            )
            trajectory.add(Generation(tokens[start:end], log_probs[start:end], "stop", versions))
        else:
            trajectory.give(tokens[start:end])
    trajectory.status = Status(own.status)
    return trajectory
