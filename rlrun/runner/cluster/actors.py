"""The bodies of the job's processes: a trainer rank, an engine. Plain classes; Ray wraps them.

What a process prints goes to its own log, from the first line on. What it raises comes back as a `Failure`:
an exception object may not survive the way.
"""

import faulthandler
import logging
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar
from urllib.request import urlopen

from rlrun.runner.batches.columns import Columns, from_columns, joined_log_probs
from rlrun.runner.batches.packing import MicroBatches
from rlrun.runner.carriers import GroupAddress, Readers, TrainerSetup, TrainStep, WeightBucket, WeightUpdate
from rlrun.runner.cluster.failures import Failure
from rlrun.runner.engines.setup import EngineSetup
from rlrun.runner.engines.sglang.server import SglangServer
from rlrun.runner.engines.sglang.setup import SglangSetup
from rlrun.runner.engines.sleeping.setup import SleepingSetup

_HEALTH_SECONDS = 60.0

Self = TypeVar("Self")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def reports_failure(
    method: Callable[Concatenate[Self, Parameters], Result],
) -> Callable[Concatenate[Self, Parameters], Result | Failure]:
    """Return what a method raises, its trace in the log: the boundary to everything a process runs."""

    @wraps(method)
    def guarded(self: Self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result | Failure:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            failure = Failure.of(error)
            print(failure.trace, file=sys.stderr, flush=True)
            return failure

    return guarded


class Process:
    """What all kinds share."""

    pings_aside: ClassVar[bool] = False
    """Whether a ping is answered in a thread of its own, whatever else the process is busy with."""

    def __init__(self, log: str) -> None:
        """Send everything this process prints to the end of `log`."""
        redirect_output(Path(log))

    @reports_failure
    def ping(self) -> tuple[int, float]:
        """The process's id and the most memory it has used, bytes, while all is well."""
        return os.getpid(), peak_memory()

    @reports_failure
    def free_port(self) -> int:
        """A port of this host that is free."""
        with socket.socket() as one:
            one.bind(("", 0))
            return int(one.getsockname()[1])

    @reports_failure
    def missing(self, paths: list[str]) -> list[str]:
        """Which of the paths this host does not see."""
        return [path for path in paths if not Path(path).exists()]


class TrainerActor(Process):
    """One trainer rank."""

    pings_aside = True

    @reports_failure
    def start(self, setup: TrainerSetup) -> None:
        """Import torch, join the other ranks and load the model: seconds to minutes."""
        from rlrun.runner.trainer.rank import TrainerRank

        self._rank = TrainerRank(setup)

    @reports_failure
    def log_probs(self, columns: Columns, micro_batches: MicroBatches, reference: bool) -> tuple[Any, float]:
        """Log-probs as places, lengths and one array; seconds."""
        started = time.perf_counter()
        found = self._rank.log_probs(from_columns(columns), micro_batches, reference)
        return joined_log_probs(found), time.perf_counter() - started

    @reports_failure
    def teacher_log_probs(self, columns: Columns, micro_batches: MicroBatches) -> tuple[Any, float]:
        """The teacher's log-probs as places, lengths and one array; seconds."""
        started = time.perf_counter()
        found = self._rank.teacher_log_probs(from_columns(columns), micro_batches)
        return joined_log_probs(found), time.perf_counter() - started

    @reports_failure
    def values(self, columns: Columns, micro_batches: MicroBatches) -> tuple[Any, float]:
        """The critic's values as places, lengths and one array; seconds."""
        started = time.perf_counter()
        found = self._rank.values(from_columns(columns), micro_batches)
        return joined_log_probs(found), time.perf_counter() - started

    @reports_failure
    def train_critic(self, columns: Columns, steps: list[TrainStep]) -> tuple[list[dict[str, float]], float]:
        """Metrics of each of the critic's optimizer steps; seconds."""
        started = time.perf_counter()
        metrics = self._rank.train_critic(from_columns(columns), steps)
        return metrics, time.perf_counter() - started

    @reports_failure
    def update_reference(self) -> None:
        """The reference becomes the current policy."""
        self._rank.update_reference()

    @reports_failure
    def train(self, columns: Columns, steps: list[TrainStep]) -> tuple[list[dict[str, float]], float]:
        """Metrics of each optimizer step; seconds."""
        started = time.perf_counter()
        metrics = self._rank.train(from_columns(columns), steps)
        return metrics, time.perf_counter() - started

    @reports_failure
    def write_weights(self, version: int) -> WeightUpdate | None:
        """Rank 0 says where the weights are."""
        return self._rank.write_weights(version)

    @reports_failure
    def offload(self) -> None:
        """Leave the device's memory to others."""
        self._rank.offload()

    @reports_failure
    def reload(self) -> None:
        """Take it back."""
        self._rank.reload()

    @reports_failure
    def begin_weights(self, readers: Readers) -> GroupAddress | None:
        """Begin to hand over the weights; rank 0 says where the readers meet, if they do."""
        return self._rank.begin_weights(readers)

    @reports_failure
    def next_bucket(self) -> WeightBucket | None:
        """The next bucket of them, from the ranks that hand it over."""
        return self._rank.next_bucket()

    @reports_failure
    def save(self, folder: str) -> None:
        """Write this rank's part of a checkpoint."""
        self._rank.save(folder)

    @reports_failure
    def begin_save(self, folder: str) -> None:
        """Copy this rank's part of a checkpoint, and begin to write it."""
        self._rank.begin_save(folder)

    @reports_failure
    def saved(self) -> bool:
        """Whether it is written."""
        return self._rank.saved()

    @reports_failure
    def load(self, folder: str) -> None:
        """Read this rank's part of a checkpoint."""
        self._rank.load(folder)

    @reports_failure
    def export_hf(self, folder: str) -> None:
        """Write the model as a Hugging Face folder, with the other ranks."""
        self._rank.export_hf(folder)

    @reports_failure
    def close(self) -> None:
        """Give back what outlives a process."""
        self._rank.close()


class EngineActor(Process):
    """One engine of our own, native or sleeping, which serves HTTP from threads of its own."""

    _url: str | None = None

    @reports_failure
    def start(self, setup: EngineSetup | SleepingSetup) -> str:
        """Load the model and listen; the URL."""
        self._server = _own_server(setup)
        self._url = self._server.start()
        return self._url

    @reports_failure
    def ping(self) -> tuple[int, float]:
        """As for every process, while the engine says that it works; its failure otherwise."""
        if self._url is not None:
            with urlopen(f"{self._url}/health", timeout=_HEALTH_SECONDS):
                pass
        return os.getpid(), peak_memory()

    @reports_failure
    def close(self) -> None:
        """Stop listening."""
        self._server.stop()


class SglangActor(Process):
    """One SGLang server, a process of its own that dies with this one."""

    _server: SglangServer | None = None

    @reports_failure
    def start(self, setup: SglangSetup) -> str:
        """Start the server and wait until it answers; the URL."""
        self._server = SglangServer(setup)
        return self._server.start()

    @reports_failure
    def ping(self) -> tuple[int, float]:
        """As for every process, while the server answers; what it died of otherwise."""
        if self._server is None:
            return os.getpid(), 0.0
        self._server.check()
        return os.getpid(), self._server.memory()

    @reports_failure
    def close(self) -> None:
        """End the server and all that it started."""
        if self._server is not None:
            self._server.stop()


def _own_server(setup: EngineSetup | SleepingSetup) -> Any:
    """With what only this process imports."""
    if isinstance(setup, SleepingSetup):
        from rlrun.runner.engines.sleeping.server import SleepingServer

        return SleepingServer(setup)
    from rlrun.runner.engines.native.server import NativeServer

    return NativeServer(setup)


def visible_gpus() -> str:
    """Ids of the GPUs that Ray gives whoever runs this, as it tells CUDA."""
    return os.environ["CUDA_VISIBLE_DEVICES"]


def redirect_output(log: Path) -> None:
    """Append this process's standard output and error to `log`, line by line."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", force=True)


def peak_memory() -> float:
    """Bytes: of the GPU where this process uses one, else of the process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
