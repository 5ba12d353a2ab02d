"""The engine's thread: takes what other threads ask for between two steps, and steps while there is work.

any thread: submit(jobs), call(function) -> inbox -> engine thread -> Scheduler.step -> job.on_done
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal, TypeVar

import torch

from rlrun.runner.carriers import WeightManifest
from rlrun.runner.engines.native.cache import KVCache, make_cache
from rlrun.runner.engines.native.loading import Loaded
from rlrun.runner.engines.native.requests import Job, group_jobs
from rlrun.runner.engines.native.scheduler import PREFILL_TOKENS
from rlrun.runner.engines.native.weights import ModelWeights, allocate, check_shapes, fuse, read_folder
from rlrun.runner.weights.shared_memory import AttachedWeights, attach

T = TypeVar("T")
PauseMode = Literal["abort", "in_place", "retract"]
Part = Literal["weights", "kv_cache"]
"""What an engine gives away while it sleeps."""
_log = logging.getLogger(__name__)


class Engine:
    """One loaded model that generates in a thread of its own; any thread may call its public methods."""

    def __init__(self, loaded: Loaded, threads: int | None = None) -> None:
        self.loaded = loaded
        self.failure: str | None = None
        """Why the engine stopped working; None while it works."""
        self.asleep: set[Part] = set()
        """What it has no memory for at the moment."""
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
        if self.asleep:
            raise ValueError(f"the engine sleeps: it has no memory for {' and '.join(sorted(self.asleep))}")
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

    def score(self, jobs: Sequence[Job]) -> "list[Future[None]]":
        """Fill in the jobs' `prompt_log_probs`, a pass' worth of prompts between two steps."""
        futures: list[Future[None]] = []
        for part in _passes(jobs):
            futures.append(self.call(partial(self._score, part)))
        return futures

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

    def holds_cache(self) -> "Future[bool]":
        """A sample, running or waiting, has something in the cache."""
        return self.call(lambda: self._scheduler.holds_cache)

    def release(self, parts: Collection[Part]) -> "Future[None]":
        """Give memory of weights or cache away until `take_back`; ValueError while samples run or wait."""

        def run() -> None:
            if self._scheduler.busy:
                raise ValueError("samples are running or waiting: memory is given away only between them")
            model = self._scheduler.model
            if "weights" in parts:
                model.release_weights()
                self._let_go()
            if "kv_cache" in parts:
                nothing = model.cache.keys.new_empty(0)
                model.cache = KVCache(nothing, nothing)
            if model.cache.keys.device.type == "cuda":
                torch.cuda.empty_cache()  # another process is to have it
            self.asleep |= set(parts)

        return self.call(run)

    def take_back(self, parts: Collection[Part]) -> "Future[None]":
        """Have that memory again; weights have to be given anew before anything is generated."""

        def run() -> None:
            model = self._scheduler.model
            if "kv_cache" in parts and "kv_cache" in self.asleep:
                blocks = self._scheduler.blocks
                model.cache = make_cache(model.config, blocks, self.loaded.dtype, model.cache.keys.device)
            self.asleep -= set(parts) - {"weights"}

        return self.call(run)

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

    def _score(self, jobs: Sequence[Job]) -> None:
        found = self._scheduler.score([job.prompt for job in jobs])
        for job, log_probs in zip(jobs, found, strict=True):
            job.prompt_log_probs = log_probs
            job.finish = {"type": "length", "length": 0}

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
        self.asleep.discard("weights")
        self._let_go()
        self._attached = attached

    def _let_go(self) -> None:
        """Of weights that are no longer served."""
        self._owned = None
        before, self._attached = self._attached, None
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


def _passes(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Jobs whose prompts fit into one pass, in order."""
    first, tokens = 0, 0
    for number, job in enumerate(jobs):
        if number > first and tokens + len(job.prompt) > PREFILL_TOKENS:
            yield jobs[first:number]
            first, tokens = number, 0
        tokens += len(job.prompt)
    yield jobs[first:]


def parse_version(raw: Any) -> int:
    """A `weight_version` of the protocol, a string there, as a number. Raises ValueError."""
    try:
        return int(raw)
    except (TypeError, ValueError):
        raise ValueError(f"weight_version {raw!r} is no whole number") from None
