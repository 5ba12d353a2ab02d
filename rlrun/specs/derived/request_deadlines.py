"""How long a call to an engine may go unanswered under a spec."""

import math

from rlrun.specs.derived.lengths import longest_response
from rlrun.specs.sections.job import Spec


def answer_timeout(spec: Spec) -> float:
    """Returns the seconds after which a connection gives up on an answer, with time in the engine's queue.

    Within it, each request has `rollout.request_timeout` from when the engine takes it. At worst all samples
    in flight are on one engine, and those before the last request take all their time.
    """
    rollout = spec.rollout
    ahead = rollout.max_staleness if rollout.mode == "async" else 1
    groups = (rollout.oversample or rollout.batch_size) + ahead * rollout.batch_size
    rounds = math.ceil(groups * rollout.samples_per_prompt / spec.engine.max_running)
    return (1 + rounds) * rollout.seconds_for(longest_response(spec))
