"""GRPO with a real SGLang server: learns, agrees with the trainer, ends cleanly."""

import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from rlrun.converters.tensors.int4_groups import rounded_to_int4
from rlrun.models.low_precision import is_int4_matrix
from tests.integration.jobs import Ended, Jobs, Running
from tests.sglang_cpu.servers import ARGUMENTS, ENVIRONMENT, python

SETTINGS = {
    "deterministic": False,  # a server draws as its batches fall
    "engine__type": "sglang",
    "engine__environment": ENVIRONMENT,
    "engine__sglang": ARGUMENTS,
    "engine__max_cache_tokens": 8192,
}


def runs(pid: int) -> bool:
    """Returns whether a process still runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def sharded(jobs: Jobs) -> Ended:
    """Two trainer ranks, and one server that weights are broadcast to."""
    return jobs.run(
        "sglang",
        engine__python=python(),
        engine__weight_sync="broadcast",
        engine__weight_check="all",
        trainer__parallel__fsdp=2,
        **SETTINGS,
    )


def test_the_policy_learns(sharded: Ended) -> None:
    assert sharded.code == 0, sharded.output
    rewards = [line["rollout/reward/mean"] for line in sharded.metrics]
    assert rewards[0] < 0.3
    assert max(rewards[-3:]) > 0.6


def test_server_and_trainer_agree_after_every_weight_sync(sharded: Ended) -> None:
    for line in sharded.metrics:
        assert line["train/approx_kl"] == 0.0
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4
        assert line["rollout/staleness/max"] == 0


def test_nothing_of_the_server_is_left(sharded: Ended) -> None:
    log = (sharded.folder.logs / "engine-0.log").read_text()
    pids = {int(pid) for pid in re.findall(r"Started server process \[(\d+)\]", log)}
    assert pids
    assert not [pid for pid in pids if runs(pid)]
    assert not list(sharded.folder.logs.glob("*.keys.yaml"))
    writer = sharded.folder.read_state()["processes"]["trainer 0"]
    assert not list(Path("/dev/shm").glob(f"torch_{writer}_*"))


@pytest.mark.slow
def test_a_server_that_is_killed_is_started_again_with_the_current_weights(jobs: Jobs) -> None:
    settings = SETTINGS | {"engine__python": python(), "trainer__steps": 10}
    settings |= {"engine__weight_sync": "broadcast"}  # in a group that must be set up anew
    running = jobs.start("sglang-killed", **settings)
    running.until_step(2)
    actor = psutil.Process(running.pid("engine 0"))
    next(one for one in actor.children() if "sglang" in " ".join(one.cmdline())).kill()
    ended = running.wait()
    assert ended.code == 0, ended.output
    assert "engine 0 failed: EngineError: the SGLang server ended (signal SIGKILL)" in ended.output
    assert "is back after" in ended.output
    assert [line["step"] for line in ended.metrics] == list(range(1, 11))
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in ended.metrics)


@pytest.mark.slow
def test_a_server_generates_with_the_matrices_that_are_rounded_to_four_bits(jobs: Jobs) -> None:
    """SGLang holds the numbers of a dense model in bfloat16; on a CPU it has no products in INT4 or FP8."""
    ended = jobs.run(
        "sglang-int4",
        engine__python=python(),
        engine__dtype="bfloat16",
        engine__weight_check="all",
        trainer__dtype="bfloat16",
        trainer__precision="int4_qat",
        checkpoint__export_hf=True,
        **SETTINGS,
    )
    assert ended.code == 0, ended.output
    rewards = [line["rollout/reward/mean"] for line in ended.metrics]
    assert max(rewards[-3:]) > rewards[0] + 0.2
    for line in ended.metrics:
        assert line["train/train_rollout_logprob_abs_diff"] < 0.05
    for name, tensor in load_file(ended.folder.model / "model.safetensors").items():
        if is_int4_matrix(name, routed=False):
            assert torch.equal(rounded_to_int4(tensor.bfloat16(), 32).float(), tensor.float()), name


@pytest.mark.slow
def test_a_job_that_sends_changed_elements_goes_on_after_its_driver_was_killed(jobs: Jobs) -> None:
    settings = SETTINGS | {
        "engine__python": python(),
        "engine__dtype": "bfloat16",
        "engine__weight_delta": "elements",
        "engine__weight_check": "all",
        "trainer__lr": 1e-5,
        "trainer__steps": 6,
        "checkpoint__interval": 1,
        "checkpoint__export_hf": True,
    }
    running = jobs.start("deltas", **settings)
    running.until_step(4)
    running.signal(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    ended = jobs.run("deltas", "--resume", **settings)
    assert ended.code == 0, ended.output
    assert [line["step"] for line in ended.metrics] == list(range(1, 7))
    exported = load_file(ended.folder.model / "model.safetensors")
    whole = sum(2 * tensor.numel() for tensor in exported.values())
    for line in ended.metrics:
        assert line["train/train_rollout_logprob_abs_diff"] < 0.05
        assert line["perf/weight_sync_bytes"] < 0.25 * whole
    assert not list(Path("/dev/shm").glob("rlrun-deltas-*"))


@pytest.mark.slow
def test_a_job_with_groups_of_servers_goes_on_after_its_driver_was_killed(jobs: Jobs) -> None:
    """The servers of both groups get every version of the weights, in one process group."""
    settings = SETTINGS | {
        "engine__python": python(),
        "engine__weight_sync": "broadcast",
        "engine__weight_check": "all",
        "engine__groups": [{"sglang": {"chunked_prefill_size": 64}}, {"sglang": {"stream_interval": 4}}],
        "trainer__steps": 6,
        "checkpoint__interval": 1,
    }
    running = jobs.start("groups", **settings)
    running.until_step(3)
    running.signal(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    ended = jobs.run("groups", "--resume", **settings)
    assert ended.code == 0, ended.output
    assert [line["step"] for line in ended.metrics] == list(range(1, 7))
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in ended.metrics)
    first, second = ((ended.folder.logs / f"engine-{number}.log").read_text() for number in range(2))
    assert ("'chunked_prefill_size': 64," in first, "'chunked_prefill_size': 64," in second) == (True, False)
    assert ("'stream_interval': 4," in first, "'stream_interval': 4," in second) == (False, True)
    assert all("Prefill batch" in log for log in (first, second))


def needs_mooncake() -> None:
    """Skips a test where SGLang's environment lacks what hands caches from server to server."""
    importing = [python(), "-c", "import mooncake.engine"]
    if subprocess.run(importing, capture_output=True, check=False).returncode:
        pytest.skip("mooncake-transfer-engine-non-cuda is not in .venv-sglang, or libibverbs1 is missing")


@pytest.mark.slow
def test_prefill_and_decode_on_servers_of_their_own(jobs: Jobs) -> None:
    """Caches travel over TCP. A prefill server that is killed is started again, with the current weights; a
    driver that was killed goes on.
    """
    needs_mooncake()
    paths = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    settings = SETTINGS | {
        "engine__python": python(),
        "engine__environment": ENVIRONMENT | paths | {"MC_FORCE_TCP": "1"},
        "engine__weight_sync": "broadcast",
        "engine__weight_check": "all",
        "engine__groups": [{"role": "prefill"}, {"role": "decode"}],
        "trainer__steps": 8,
        "checkpoint__interval": 1,
    }
    running = jobs.start("apart", **settings)
    running.until_step(2)
    actor = psutil.Process(running.pid("engine 0"))
    next(one for one in actor.children() if "launch_server" in " ".join(one.cmdline())).kill()
    running.until_step(5)
    running.signal(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    ended = jobs.run("apart", "--resume", **settings)
    assert ended.code == 0, ended.output
    assert [line["step"] for line in ended.metrics] == list(range(1, 9))
    for line in ended.metrics:
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4
        assert line["rollout/staleness/max"] == 0
    prefill, decode = ((ended.folder.logs / f"engine-{number}.log").read_text() for number in range(2))
    assert "'disaggregation_mode': 'prefill'" in prefill
    assert "Decode batch" in decode and "Decode batch" not in prefill


def router_of(running: Running) -> psutil.Process:
    return next(one for one in running.children() if "sglang_router" in " ".join(one.cmdline()))


@pytest.mark.slow
def test_a_router_and_a_server_behind_it_that_are_killed_are_started_again(jobs: Jobs) -> None:
    settings = SETTINGS | {"engine__python": python(), "trainer__steps": 12}
    running = jobs.start("sglang-router", engine__router="sglang-router", **settings)
    running.until_step(2)
    router_of(running).kill()
    running.until_step(5)
    again = router_of(running)
    actor = psutil.Process(running.pid("engine 0"))
    next(one for one in actor.children() if "launch_server" in " ".join(one.cmdline())).kill()
    ended = running.wait()
    assert ended.code == 0, ended.output
    assert "the router (sglang-router) ended (signal SIGKILL)" in ended.output
    assert "starting it again (2 restarts left)" in ended.output
    assert "engine 0 is back after" in ended.output
    assert [line["step"] for line in ended.metrics] == list(range(1, 13))
    assert all(line["train/train_rollout_logprob_abs_diff"] < 1e-4 for line in ended.metrics)
    assert not again.is_running()
    assert not list(ended.folder.logs.glob("router.key*"))
