"""How long ranks wait for one another, and a rank that hangs."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from rlrun.runner.host.network import free_port
from rlrun.runner.trainer.exchange_timeouts import ExchangeTimeouts, Phase, exchange_seconds

HANGING = """
import sys
import torch.distributed as dist

dist.init_process_group("gloo", init_method=sys.argv[1], rank=1, world_size=2)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    ("phase", "in_passes", "state_bytes", "seconds"),
    [
        pytest.param("passes", 600, 1e12, 600, id="a pass"),
        pytest.param("passes", 3600, 1e12, 3600, id="a pass of a user who waits longer"),
        pytest.param("start", 600, 1e12, 1800, id="loading and compiling"),
        pytest.param("start", 3600, 1e12, 3600, id="never less than in a pass"),
        pytest.param("transfers", 600, 1e6, 1800.02, id="the checkpoint of a tiny model"),
        pytest.param("transfers", 600, 64e9, 3080, id="the checkpoint of a 4B model on a slow disk"),
    ],
)
def test_seconds(phase: Phase, in_passes: float, state_bytes: float, seconds: float) -> None:
    assert exchange_seconds(phase, in_passes, state_bytes) == seconds


@pytest.fixture
def hanging_rank() -> Iterator[None]:
    """This process is rank 0; rank 1 joins and then takes part in nothing."""
    meeting = f"tcp://127.0.0.1:{free_port('127.0.0.1')}"
    with subprocess.Popen([sys.executable, "-c", HANGING, meeting], stdin=subprocess.PIPE) as rank:
        dist.init_process_group("gloo", init_method=meeting, rank=0, world_size=2)
        yield
        dist.destroy_process_group()
        rank.kill()


def test_a_rank_that_hangs_in_a_pass_is_found_and_the_first_pass_may_take_longer(hanging_rank: None) -> None:
    subgroup = dist.new_group([0], use_local_synchronization=True)
    timeouts = ExchangeTimeouts(0.5, state_bytes=0.0)

    def seconds() -> list[float]:
        groups = [dist.group.WORLD, subgroup]
        return [one._get_backend(torch.device("cpu")).options._timeout.total_seconds() for one in groups]

    assert seconds() == [1800, 1800]
    timeouts.enter_pass("training of the policy")
    assert seconds() == [1800, 1800]
    timeouts.enter_pass("training of the policy")
    assert seconds() == [0.5, 0.5]
    timeouts.enter("transfers")
    assert seconds() == [1800, 1800]
    timeouts.enter_pass("training of the policy")
    with pytest.raises(RuntimeError, match=r"(?i)timed? ?out"):
        dist.all_reduce(torch.ones(1))


def test_a_rank_alone_has_nothing_to_set() -> None:
    ExchangeTimeouts(600.0, 0.0).enter("transfers")
