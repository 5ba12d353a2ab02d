"""The engine's thread: takes what other threads ask for between two steps, and steps while there is work.

any thread: submit(jobs), call(function) -> inbox -> engine thread -> Scheduler.step -> job.on_done
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Literal, TypeVar

import torch

from rlrun.runner.carriers import WeightManifest
from rlrun.runner.engines.native.loading import Loaded
from rlrun.runner.engines.native.requests import Job, group_jobs
from rlrun.runner.engines.native.weights import ModelWeights, allocate, check_shapes, fuse, read_folder
from rlrun.runner.weights.shared_memory import AttachedWeights, attach

T = TypeVar("T")
PauseMode = Literal["abort", "in_place", "retract"]
_log = logging.getLogger(__name__)


class Engine:
    """One loaded model that generates in a thread of its own; any thread may call its public methods."""

    def __init__(self, loaded: Loaded, threads: int | None = None) -> None:
        self.loaded = loaded
        self.failure: str | None = None
        """Why the engine stopped working; None while it works."""
        self._scheduler = loaded.scheduler
        self._threads = threads
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._stopping = False
        self._paused = False
        self._attached: AttachedWeights | None = None
        self._owned: dict[str, torch.Tensor] | None = None
        self._thread = threading.Thread(target=self._run, name="rlrun-engine", daemon=True)

    @property
    def version(self) -> int:
        """Of the weights in use."""
        return self._scheduler.version

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self, wait: float = 30.0) -> None:
        """Abort everything and end the thread. TimeoutError when a step takes longer than `wait` seconds."""
        self._post(lambda: None, stopping=True)
        self._thread.join(wait)
        if self._thread.is_alive():
            raise TimeoutError(f"the engine's thread did not end within {wait:g} s: a step is still running")

    def check(self, job: Job) -> None:
        """Raises ValueError when a job can never run here, with the numbers."""
        prompt, budget, limit = len(job.prompt), job.params.max_new_tokens, self.loaded.max_length
        need = f"a prompt of {prompt} tokens and max_new_tokens {budget} make {prompt + budget}"
        if not prompt:
            raise ValueError("input_ids is empty: the prompt needs at least one token")
        if prompt + budget > limit:
            raise ValueError(f"{need}; this engine's sequences have at most {limit} tokens")
        if prompt + budget > self.loaded.cache_tokens:
            raise ValueError(f"{need}; this engine's cache holds {self.loaded.cache_tokens} tokens")
        if job.prompt.min() < 0 or job.prompt.max() >= self.loaded.config.vocab_size:
            raise ValueError(f"input_ids must lie in [0, {self.loaded.config.vocab_size})")
        self.loaded.stops.strings.check(job.params)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs at once and in order; neighbours with equal prompts share its prefill."""
        groups = group_jobs(jobs)
        self._post(lambda: self._scheduler.add(groups))

    def call(self, function: Callable[[], T]) -> "Future[T]":
        """Run `function` in the engine's thread between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._post(run)
        return future

    def abort(self, chosen: Callable[[Job], bool]) -> "Future[int]":
        """End the chosen jobs with what they have so far."""
        return self.call(lambda: self._scheduler.abort(chosen, "aborted by request"))

    def pause(self, mode: PauseMode) -> "Future[None]":
        """Stop stepping: end all jobs (abort), keep their cache (in_place), or drop it (retract)."""

        def run() -> None:
            self._paused = True
            if mode == "abort":
                self._scheduler.abort(lambda job: True, "aborted by a pause")
            elif mode == "retract":
                self._scheduler.retract_all()

        return self.call(run)

    def resume(self) -> "Future[None]":
        """Go on after a pause."""

        def run() -> None:
            self._paused = False

        return self.call(run)

    def is_idle(self) -> "Future[bool]":
        """Nothing runs or waits."""
        return self.call(lambda: not self._scheduler.busy)

    def load_shared(self, manifest: WeightManifest) -> "Future[None]":
        """Take over a segment's weights between two steps; on a CPU the segment itself serves as them.


        Raises ValueError when the segment does not hold the whole model; the old weights stay then.
        """
        config, current = self.loaded.config, self._scheduler.model.weights.norm
        check_shapes({slot.name: slot.shape for slot in manifest.tensors}, config, manifest.segment)
        attached = attach(manifest)
        if current.device.type != "cpu" or any(t.dtype != current.dtype for t in attached.tensors.values()):
            return self.call(lambda: self._copy(attached, manifest.version))
        weights = fuse(attached.tensors, config)
        return self.call(lambda: self._swap(weights, manifest.version, attached))

    def load_folder(self, folder: str, version: int) -> "Future[None]":
        """Read a checkpoint folder in the caller's thread, then swap between two steps. Raises ValueError."""
        config, current = self.loaded.config, self._scheduler.model.weights.norm
        named = allocate(config, current.dtype, current.device)
        read_folder(folder, config, into=named)
        weights = fuse(named, config)
        return self.call(lambda: self._swap(weights, version, None))

    # -- the engine's thread

    def _copy(self, attached: AttachedWeights, version: int) -> None:
        """Weights for another device or of another dtype: copied, from the second time on over the last."""
        config, current = self.loaded.config, self._scheduler.model.weights.norm
        owned = self._owned or allocate(config, current.dtype, current.device)
        for name, tensor in owned.items():
            tensor.copy_(attached.tensors[name])
        attached.close()
        self._swap(fuse(owned, config), version, None)
        self._owned = owned

    def _swap(self, weights: ModelWeights, version: int, attached: AttachedWeights | None) -> None:
        self._scheduler.set_weights(weights, version)
        self._owned = None
        before, self._attached = self._attached, attached
        if before is not None:
            before.close()

    def _post(self, action: Callable[[], None], stopping: bool = False) -> None:
        with self._wake:
            self._inbox.append(action)
            self._stopping = self._stopping or stopping
            self._wake.notify()

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)  # OpenMP's setting belongs to the thread that makes it
        while self._serve_inbox():
            if self._paused or not self._scheduler.busy:
                continue
            try:
                self._scheduler.step()
            except Exception as error:
                _log.exception("the engine failed")
                self._fail(f"{type(error).__name__}: {error}")
                return
        self._scheduler.abort(lambda job: True, "the engine stops")
        if self._attached is not None:
            self._attached.close()

    def _serve_inbox(self) -> bool:
        """Do what was asked, waiting for it when there is nothing else to do. False: time to stop."""
        with self._wake:
            while not (self._inbox or self._stopping or (self._scheduler.busy and not self._paused)):
                self._wake.wait()
            actions = list(self._inbox)
            self._inbox.clear()
        for action in actions:
            action()
        return not self._stopping

    def _fail(self, reason: str) -> None:
        """Answer everything with the failure, now and later."""
        self.failure = reason
        self._paused = True
        while True:
            self._scheduler.fail(reason)
            if not self._serve_inbox():
                return


def parse_version(raw: Any) -> int:
    """A `weight_version` of the protocol, a string there, as a number. Raises ValueError."""
    try:
        return int(raw)
    except (TypeError, ValueError):
        raise ValueError(f"weight_version {raw!r} is no whole number") from None
