"""Summarises what a run reached: its steps, their duration, and its last and best rewards."""

import re
from collections.abc import Sequence
from statistics import median
from typing import Any

_REWARD, _LOSS, _STEP_TIME = "rollout/reward/mean", "train/loss", "perf/step_time"
_HELD_OUT = re.compile(r"eval/.+/(reward|pass@\d+)")


def results_of(lines: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Returns the results by name, from the lines of metrics.jsonl; empty for a run without any.

    The loss is only a result of jobs without rewards. The first step is left out of the time per step,
    because programs are still warming up.

    Example: `{"steps": 20, "perf/step_time.median": 4.2, "rollout/reward/mean.last": 0.96,
    "rollout/reward/mean.best": 0.97, "eval/held-out/reward.last": 0.995, "eval/held-out/reward.best": 0.995}`
    """
    if not lines:
        return {}
    results: dict[str, float] = {"steps": lines[-1]["step"]}
    times = _values(lines, _STEP_TIME)
    if times:
        results[f"{_STEP_TIME}.median"] = median(times[1:] or times)
    names = dict.fromkeys(name for line in lines for name in line)
    objective = _REWARD if _REWARD in names else _LOSS
    for name in (objective, *filter(_HELD_OUT.fullmatch, names)):
        if values := _values(lines, name):
            best = min if name == _LOSS else max
            results |= {f"{name}.last": values[-1], f"{name}.best": best(values)}
    return results


def _values(lines: Sequence[dict[str, Any]], name: str) -> list[float]:
    return [line[name] for line in lines if line.get(name) is not None]
