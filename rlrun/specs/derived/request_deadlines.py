"""The timeout of HTTP calls to engines."""

import math

from rlrun.specs.derived.lengths import longest_response
from rlrun.specs.needs import Needs
from rlrun.specs.sections.job import Spec


def answer_timeout(spec: Spec, needs: Needs) -> float:
    """Returns the seconds after which an HTTP call fails, including the request's time in the engine's queue.

    `rollout.request_timeout` only starts when the engine takes the request out of its queue. In the worst
    case all samples in flight are on one engine, with those of greedy responses, and all before this request
    use their whole timeout.
    """
    rollout = spec.rollout
    ahead = rollout.max_staleness if rollout.mode == "async" else 1
    groups = rollout.oversample + ahead * rollout.batch_size
    rounds = math.ceil(groups * needs.responses(rollout.samples_per_prompt) / spec.engine.max_running)
    return (1 + rounds) * rollout.seconds_for(longest_response(spec))
