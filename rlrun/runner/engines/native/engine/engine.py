"""What the native engine does when asked: samples, scores, pauses, new weights, sleep; all in its thread."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Literal

import torch

from rlrun.runner.contracts.carriers import WeightManifest
from rlrun.runner.engines.native.engine.loading import Loaded
from rlrun.runner.engines.native.engine.requests import Job, group_jobs
from rlrun.runner.engines.native.engine.scheduler import PREFILL_TOKENS
from rlrun.runner.engines.native.engine.thread import EngineThread
from rlrun.runner.engines.native.model.cache import KVCache, make_cache
from rlrun.runner.engines.native.model.fused_weights import (
    ModelWeights,
    allocate,
    check_shapes,
    fuse,
    read_folder,
)
from rlrun.runner.weights.shared_memory import AttachedWeights, attach

PauseMode = Literal["abort", "in_place", "retract"]
Part = Literal["weights", "kv_cache"]
"""What an engine gives away while it sleeps."""


class Engine:
    """One loaded model that generates in a thread of its own; any thread may call its public methods."""

    def __init__(self, loaded: Loaded, threads: int | None = None) -> None:
        self.loaded = loaded
        self.asleep: set[Part] = set()
        """What it has no memory for at the moment."""
        self._scheduler = loaded.scheduler
        self._attached: AttachedWeights | None = None
        self._owned: dict[str, torch.Tensor] | None = None
        self._thread = EngineThread(loaded.scheduler, self._let_go, threads)

    @property
    def version(self) -> int:
        """Of the weights in use."""
        return self._scheduler.version

    @property
    def failure(self) -> str | None:
        """Why the engine stopped working; None while it works."""
        return self._thread.failure

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    def stop(self, wait: float = 30.0) -> None:
        """Abort everything and end the thread. TimeoutError when a step takes longer than `wait` seconds."""
        self._thread.stop(wait)

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
        if job.prompt.min() < 0 or job.prompt.max() >= self.loaded.architecture.vocab:
            raise ValueError(f"input_ids must lie in [0, {self.loaded.architecture.vocab})")
        self.loaded.stops.strings.check(job.params)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue jobs at once and in order; neighbours with equal prompts share its prefill."""
        groups = group_jobs(jobs)
        self._thread.post(lambda: self._scheduler.add(groups))

    def score(self, jobs: Sequence[Job]) -> "list[Future[None]]":
        """Fill in the jobs' `prompt_log_probs`, a pass' worth of prompts between two steps."""
        futures: list[Future[None]] = []
        for part in _passes(jobs):
            futures.append(self._thread.call(partial(self._score, part)))
        return futures

    def abort(self, chosen: Callable[[Job], bool]) -> "Future[int]":
        """End the chosen jobs with what they have so far."""
        return self._thread.call(lambda: self._scheduler.abort(chosen, "aborted by request"))

    def pause(self, mode: PauseMode) -> "Future[None]":
        """Stop stepping: end all jobs (abort), keep their cache (in_place), or drop it (retract)."""

        def run() -> None:
            self._thread.paused = True
            if mode == "abort":
                self._scheduler.abort(lambda job: True, "aborted by a pause")
            elif mode == "retract":
                self._scheduler.retract_all()

        return self._thread.call(run)

    def resume(self) -> "Future[None]":
        """Go on after a pause."""

        def run() -> None:
            self._thread.paused = False

        return self._thread.call(run)

    def holds_cache(self) -> "Future[bool]":
        """A sample, running or waiting, has something in the cache."""
        return self._thread.call(lambda: self._scheduler.holds_cache)

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

        return self._thread.call(run)

    def take_back(self, parts: Collection[Part]) -> "Future[None]":
        """Have that memory again; weights have to be given anew before anything is generated."""

        def run() -> None:
            model = self._scheduler.model
            if "kv_cache" in parts and "kv_cache" in self.asleep:
                blocks = self._scheduler.blocks
                model.cache = make_cache(
                    model.architecture, blocks, self.loaded.dtype, model.cache.keys.device
                )
            self.asleep -= set(parts) - {"weights"}

        return self._thread.call(run)

    def load_shared(self, manifest: WeightManifest) -> "Future[None]":
        """Take over a segment's weights between two steps; on a CPU the segment itself serves as them.

        Raises ValueError when the segment does not hold the whole model; the old weights stay then.
        """
        architecture, current = self.loaded.architecture, self._scheduler.model.weights.norm
        check_shapes({slot.name: slot.shape for slot in manifest.tensors}, architecture, manifest.segment)
        attached = attach(manifest)
        if current.device.type != "cpu" or any(t.dtype != current.dtype for t in attached.tensors.values()):
            return self._thread.call(lambda: self._copy(attached, manifest.version))
        weights = fuse(attached.tensors, architecture)
        return self._thread.call(lambda: self._swap(weights, manifest.version, attached))

    def load_folder(self, folder: str, version: int) -> "Future[None]":
        """Read a checkpoint folder in the caller's thread, then swap between two steps. Raises ValueError."""
        architecture, current = self.loaded.architecture, self._scheduler.model.weights.norm
        named = allocate(architecture, current.dtype, current.device)
        read_folder(folder, architecture, into=named)
        weights = fuse(named, architecture)
        return self._thread.call(lambda: self._swap(weights, version, None))

    # -- the engine's thread

    def _score(self, jobs: Sequence[Job]) -> None:
        found = self._scheduler.score([job.prompt for job in jobs])
        for job, log_probs in zip(jobs, found, strict=True):
            job.prompt_log_probs = log_probs
            job.finish = {"type": "length", "length": 0}

    def _copy(self, attached: AttachedWeights, version: int) -> None:
        """Weights for another device or of another dtype: copied, from the second time on over the last."""
        architecture, current = self.loaded.architecture, self._scheduler.model.weights.norm
        owned = self._owned or allocate(architecture, current.dtype, current.device)
        for name, tensor in owned.items():
            tensor.copy_(attached.tensors[name])
        attached.close()
        self._swap(fuse(owned, architecture), version, None)
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


def _passes(jobs: Sequence[Job]) -> Iterator[Sequence[Job]]:
    """Jobs whose prompts fit into one pass, in order."""
    first, tokens = 0, 0
    for number, job in enumerate(jobs):
        if number > first and tokens + len(job.prompt) > PREFILL_TOKENS:
            yield jobs[first:number]
            first, tokens = number, 0
        tokens += len(job.prompt)
    yield jobs[first:]
