"""Conversions in processes of their own that do not live to their end."""

import multiprocessing
import os
import resource
import signal
from pathlib import Path

import pytest

from rlrun.converters.convert.conversion import Options, plan_conversion
from rlrun.converters.folders.locate import find_checkpoint
from tests.converters.conversions import EFFORT, convert, ignore
from tests.waiting import PATIENCE

# Forked from a server whose torch has no threads yet: those of a test's process do not survive a fork.
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["pytest", "safetensors.torch", "torch.distributed.checkpoint", "rlrun.converters.convert.conversion"]
)
SHARDS = {"shard_bytes": 60_000}


def plan(source, **options):
    return plan_conversion(find_checkpoint(source), "hf", Options(**SHARDS, **options))


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def run_and_die(work, *args):
    """Run in a process of its own that does not live to its end."""
    process = SERVER.Process(target=work, args=args)
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL


def write_and_die_after(calls, source, out, options):
    """A conversion that is killed when it reports its progress for the `calls`th time."""
    left = [calls]

    def count(nbytes):
        left[0] -= 1
        if left[0] == 0:
            die()

    plan(source, **options).write(out, EFFORT, count, None)


def write_and_die_at_the_end(moment, source, out):
    rename = Path.rename

    def last(path, target):
        if Path(target) == out and moment != "after":
            die()
        rename(path, target)
        if Path(target) == out:
            die()

    Path.rename = last
    plan(source).write(out, EFFORT, ignore, None)


def write_small_files(source, out, options):
    """Files may have no more than 20 kB: to the kernel that is not a full disk, to us the same."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    with pytest.raises(ValueError, match=r"model-.*: File too large; .*run the same command again"):
        convert(source, "hf", out, **SHARDS, **options)
    assert not out.exists()
    die()
