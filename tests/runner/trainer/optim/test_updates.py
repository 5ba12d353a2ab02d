import pytest

from rlrun.runner.trainer.optim.updates import learning_rate
from rlrun.specs.sections.trainer import TrainerSpec


def rates(**settings):
    spec = TrainerSpec(steps=1, lr=1.0, **settings)
    return [learning_rate(spec, step, 10) for step in range(10)]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1.0] * 10),
        ({"warmup_steps": 3}, [0.25, 0.5, 0.75] + [1.0] * 7),
        ({"warmup_ratio": 0.3}, [0.25, 0.5, 0.75] + [1.0] * 7),
        ({"warmup_ratio": 0.0}, [1.0] * 10),
        ({"warmup_ratio": 0.99}, [step / 10 for step in range(1, 11)]),
        ({"schedule": "linear"}, [1 - step / 10 for step in range(10)]),
        ({"schedule": "linear", "min_lr_ratio": 0.5}, [1 - step / 20 for step in range(10)]),
        (
            {"schedule": "linear", "warmup_steps": 5},
            [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1, 0.8, 0.6, 0.4, 0.2],
        ),
        ({"schedule": "wsd"}, [1.0] * 10),
        ({"schedule": "wsd", "decay_steps": 4, "min_lr_ratio": 0.2}, [1.0] * 7 + [0.8, 0.6, 0.4]),
        (
            {"schedule": "wsd", "warmup_steps": 3, "decay_steps": 2},
            [0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 0.5],
        ),
        ({"warmup_steps": 3, "warmup_start_ratio": 0.2}, [0.4, 0.6, 0.8] + [1.0] * 7),
        (
            {"schedule": "linear", "schedule_steps": 4, "min_lr_ratio": 0.2},
            [1.0, 0.8, 0.6, 0.4] + [0.2] * 6,
        ),
        ({"schedule": "linear", "schedule_steps": 40}, [1 - step / 40 for step in range(10)]),
        (
            {
                "schedule": "wsd",
                "schedule_steps": 8,
                "decay_steps": 4,
                "decay_curve": "sqrt",
                "min_lr_ratio": 0.2,
            },
            [1.0] * 5 + [0.6, 1 - 0.8 * 0.5**0.5, 1 - 0.8 * 0.75**0.5, 0.2, 0.2],
        ),
        (
            {"schedule": "wsd", "decay_steps": 4, "decay_curve": "exponential"},
            [1.0] * 7 + [2 * 0.5**0.25 - 1, 2 * 0.5**0.5 - 1, 2 * 0.5**0.75 - 1],
        ),
        (
            {"schedule": "wsd", "decay_steps": 4, "decay_curve": "cosine"},
            [1.0] * 7 + [0.5 + 0.5**1.5, 0.5, 0.5 - 0.5**1.5],
        ),
    ],
    ids=[
        "constant",
        "warm-up",
        "share",
        "no-share",
        "whole",
        "linear",
        "floor",
        "both",
        "wsd",
        "wsd-floor",
        "wsd-warm-up",
        "warm-up-start",
        "ends-before",
        "ends-after",
        "wsd-sqrt",
        "wsd-exponential",
        "wsd-cosine",
    ],
)
def test_schedules(settings, expected):
    assert rates(**settings) == pytest.approx(expected)


def test_the_last_tenth_decays_unless_told():
    spec = TrainerSpec(steps=1, lr=1.0, schedule="wsd")
    found = [learning_rate(spec, step, 22) for step in (18, 19, 20, 21)]
    assert found == pytest.approx([1, 1, 2 / 3, 1 / 3])


def test_cosine_is_half_way_down_in_the_middle():
    found = rates(schedule="cosine", min_lr_ratio=0.2)
    assert found[0] == 1.0
    assert found[5] == pytest.approx(0.6)
    assert found == sorted(found, reverse=True)
