"""The native engine: generates, scores, pauses, sleeps and takes new weights.

Its methods only post work to the engine's thread (`thread.py`), which owns the scheduler (`scheduler.py`).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Literal, NoReturn

import torch

from rlrun.runner.engines.native.engine.loading import LoadedEngine
from rlrun.runner.engines.native.engine.requests import SampleInProgress, group_samples
from rlrun.runner.engines.native.engine.scheduler import PREFILL_TOKENS
from rlrun.runner.engines.native.engine.thread import EngineThread
from rlrun.runner.engines.native.model.cache import KVCache, make_cache
from rlrun.runner.engines.native.model.fused_weights import allocate, fuse
from rlrun.runner.engines.native.model.layer_weights import ModelWeights, Tensors
from rlrun.runner.weights.carriers.reader import NewWeights

PauseMode = Literal["abort", "in_place", "retract"]
MemoryPart = Literal["weights", "kv_cache", "cuda_graph"]
"""A part of the memory that an engine can release while it sleeps; this engine has no CUDA graphs."""


class Engine:
    """A loaded model that generates in its own thread. Any thread may call the public methods."""

    def __init__(self, loaded: LoadedEngine, threads: int | None = None) -> None:
        self.loaded = loaded
        self.released_parts: set[MemoryPart] = set()
        """The parts whose memory is released at the moment."""
        self._scheduler = loaded.scheduler
        self._in_use: NewWeights | None = None
        """The weights in use, if they are in the memory of another process."""
        self._plain_tensors: Tensors = {}
        """The weights before they are packed, for deltas to change; empty if engines get no deltas."""
        self._thread = EngineThread(loaded.scheduler, self._drop_old_weights, threads)

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        return self._scheduler.version

    @property
    def failure(self) -> str | None:
        """Why the engine stopped working; None while it works."""
        return self._thread.failure

    def start(self) -> None:
        """Starts the engine's thread."""
        self._thread.start()

    def stop(self, wait: float = 30.0) -> None:
        """Aborts all samples and ends the thread. Raises TimeoutError if a step takes longer than `wait`
        seconds.
        """
        self._thread.stop(wait)

    def check(self, sample: SampleInProgress) -> None:
        """Raises ValueError for a sample that this engine can never run."""
        prompt, budget, limit = len(sample.prompt), sample.params.max_new_tokens, self.loaded.max_length
        if self.released_parts:
            raise ValueError(
                f"the engine sleeps and has released {' and '.join(sorted(self.released_parts))}"
            )
        total = f"a prompt of {prompt} tokens and max_new_tokens {budget} make {prompt + budget}"
        if not prompt:
            raise ValueError("input_ids is empty: the prompt needs at least one token")
        if prompt + budget > limit:
            raise ValueError(f"{total}; this engine's sequences have at most {limit} tokens")
        if prompt + budget > self.loaded.cache_tokens:
            raise ValueError(f"{total}; this engine's cache holds {self.loaded.cache_tokens} tokens")
        if sample.prompt.min() < 0 or sample.prompt.max() >= self.loaded.architecture.vocab:
            raise ValueError(f"input_ids must lie in [0, {self.loaded.architecture.vocab})")
        architecture = self.loaded.architecture
        if sample.options.return_routed_experts and (
            architecture.experts is None or architecture.stored_tensors
        ):
            reason = (
                "transformers' layers report none" if architecture.experts else "the model has no experts"
            )
            raise ValueError(f"return_routed_experts: {reason}; remove it")
        self.loaded.stops.strings.check(sample.params)

    def prepare_images(self) -> "Future[None]":
        """Loads the vision tower, unless it is loaded; the future raises ValueError if that fails."""

        def run() -> None:
            assert self._scheduler.model.tower is not None, "only models with a tower take images"
            self._scheduler.model.tower.load()

        return self._thread.call(run)

    def submit(self, samples: Sequence[SampleInProgress]) -> None:
        """Queues samples together and in order; neighbours with equal prompts share one prefill."""
        groups = group_samples(samples)
        self._thread.post(lambda: self._scheduler.add(groups))

    def score(self, samples: Sequence[SampleInProgress]) -> "list[Future[None]]":
        """Fills in the scores of the samples' prompts, one forward pass between two steps at a time."""
        futures: list[Future[None]] = []
        for part in _split_into_passes(samples):
            futures.append(self._thread.call(partial(self._score, part)))
        return futures

    def abort(self, chosen: Callable[[SampleInProgress], bool]) -> "Future[int]":
        """Ends the chosen samples with the tokens they have; the future holds how many there were."""
        return self._thread.call(lambda: self._scheduler.abort(chosen, "aborted by request"))

    def pause(self, mode: PauseMode) -> "Future[None]":
        """Pauses generation: samples end (abort), or keep (in_place) or free (retract) their cache."""

        def run() -> None:
            self._thread.paused = True
            if mode == "abort":
                self._scheduler.abort(lambda sample: True, "aborted by a pause")
            elif mode == "retract":
                self._scheduler.retract_all()

        return self._thread.call(run)

    def resume(self) -> "Future[None]":
        """Resumes generation after a pause."""

        def run() -> None:
            self._thread.paused = False

        return self._thread.call(run)

    def flush_cache(self) -> "Future[bool]":
        """Drops the cache of samples that have ended; the future holds whether nothing else is cached."""

        def run() -> bool:
            self._scheduler.drop_kept_samples()
            return not self._scheduler.holds_cache

        return self._thread.call(run)

    def release(self, parts: Collection[MemoryPart]) -> "Future[None]":
        """Releases memory until `restore`; the future raises ValueError while samples run or wait."""

        def run() -> None:
            if self._scheduler.busy:
                raise ValueError(
                    "memory cannot be released while samples run or wait: abort them or wait for them"
                )
            model = self._scheduler.model
            if "weights" in parts:
                model.release_weights()
                self._plain_tensors = {}
                if model.tower is not None:
                    model.tower.release()
                self._drop_old_weights()
            if "kv_cache" in parts:
                self._scheduler.drop_kept_samples()
                nothing = model.cache.keys.new_empty(0)
                model.cache = KVCache(nothing, nothing, model.flash)
                model.recurrent = model.recurrent and model.recurrent.emptied()
            if model.device.type == "cuda":
                torch.cuda.empty_cache()  # the memory is for another process
            self.released_parts |= set(parts)

        return self._thread.call(run)

    def restore(self, parts: Collection[MemoryPart]) -> "Future[None]":
        """Allocates the memory again; weights stay missing until the next update."""

        def run() -> None:
            model = self._scheduler.model
            if "kv_cache" in parts and "kv_cache" in self.released_parts:
                blocks = self._scheduler.blocks
                model.cache = make_cache(
                    model.architecture, blocks, self.loaded.dtype, model.device, paged=model.flash
                )
                slots = self._scheduler.state_slots
                model.recurrent = model.parts.make_states(slots, self.loaded.dtype, model.device)
            self.released_parts -= set(parts) - {"weights"}

        return self._thread.call(run)

    def load(self, new: NewWeights) -> "Future[None]":
        """Adopts new weights between two steps.

        A whole model is used where it is, if that is the engine's device and dtype. Otherwise it is read in
        the caller's thread where weights are packed afterwards, as on a CPU, and else between two steps, into
        the memory of the old weights, since a GPU may have no room for both. Adapters and changed elements
        belong to weights that the engine has, and wait for the step to end.

        This call or the future raises ValueError if the weights do not fit; the old ones stay if that is
        known before anything is written. New weights whose future is cancelled are closed.
        """
        loading = self._load(new)
        loading.add_done_callback(lambda ended: new.close() if ended.cancelled() else None)
        return loading

    def _load(self, new: NewWeights) -> "Future[None]":
        if new.payload != "model":
            return self._thread.call(lambda: self._open_and_write(new))
        model, architecture = self._scheduler.model, self.loaded.architecture
        with _closed_on_error(new):
            new.open(None)
            is_usable = _are_like(model.weights.norm, new.tensors)
            if not is_usable and not model.packs:
                return self._thread.call(lambda: self._write(new))
            tensors = new.tensors
            if not is_usable:
                tensors = allocate(architecture, model.weights.norm.dtype, model.device)
                new.write(tensors)
            weights = fuse(tensors, architecture)
        return self._thread.call(lambda: self._swap(weights, new, in_use=new if is_usable else None))

    # -- the methods below run in the engine's thread

    def _score(self, samples: Sequence[SampleInProgress]) -> None:
        prompts, images = [sample.prompt for sample in samples], [sample.images for sample in samples]
        num_top = max(sample.options.top_logprobs_num for sample in samples)
        for sample, scores in zip(samples, self._scheduler.score(prompts, images, num_top), strict=True):
            sample.prompt_log_probs = scores.log_probs
            if sample.options.top_logprobs_num:
                sample.top_ids, sample.top_log_probs = scores.top_ids, scores.top_log_probs
            sample.finish = {"type": "length", "length": 0}

    def _open_and_write(self, new: NewWeights) -> None:
        with _closed_on_error(new):
            new.open(self.version if self._plain_tensors else None)
        self._write(new)

    def _write(self, new: NewWeights) -> None:
        """Writes new weights into the memory of the old ones, or changes the plain tensors.

        Raises ValueError where that fails half-way; the engine has no weights then until the next update.
        """
        changes = new.payload == "elements"
        tensors = self._plain_tensors if changes and self._plain_tensors else self._own_tensors()
        try:
            with _closed_on_error(new):
                new.write(tensors)
        except Exception as error:
            self._lose_weights(error)
        self._swap(fuse(tensors, self.loaded.architecture), new, plain=tensors if changes else None)

    def _lose_weights(self, error: Exception) -> NoReturn:
        """Ends all samples, and raises ValueError: the engine has no weights until the next update."""
        self._scheduler.abort(lambda sample: True, "new weights could not be read")
        self._scheduler.model.release_weights()
        self._plain_tensors = {}
        self.released_parts.add("weights")
        raise ValueError(
            f"new weights could not be read, and the old ones are partly replaced: {error}"
        ) from error

    def _own_tensors(self) -> Tensors:
        """Returns the tensors to write new weights into: the current ones, unless another process owns their
        memory, or they are released or packed.
        """
        weights = self._scheduler.model.weights
        if weights.named and self._in_use is None:
            return weights.named
        return allocate(self.loaded.architecture, weights.norm.dtype, weights.norm.device)

    def _swap(
        self,
        weights: ModelWeights,
        new: NewWeights,
        *,
        in_use: NewWeights | None = None,
        plain: Tensors | None = None,
    ) -> None:
        """Uses new weights from the next step on. `plain`: their tensors, if deltas may follow."""
        self._scheduler.set_weights(weights, new.version)
        self.released_parts.discard("weights")
        self._drop_old_weights()
        self._plain_tensors, self._in_use = plain or {}, in_use
        try:
            if (tower := self._scheduler.model.tower) is not None:
                tower.update(new.present(tower.names))
        finally:
            if in_use is None:
                new.close()

    def _drop_old_weights(self) -> None:
        """Lets go of the memory of another process whose weights are no longer used."""
        weights, self._in_use = self._in_use, None
        if weights is not None:
            weights.close()


@contextmanager
def _closed_on_error(new: NewWeights) -> Iterator[None]:
    """Closes new weights if what is done with them fails."""
    try:
        yield
    except BaseException:
        new.close()
        raise


def _are_like(example: torch.Tensor, tensors: Tensors) -> bool:
    """Returns whether there are tensors, all of the example's device and dtype."""
    return bool(tensors) and all(
        (tensor.device, tensor.dtype) == (example.device, example.dtype) for tensor in tensors.values()
    )


def _split_into_passes(samples: Sequence[SampleInProgress]) -> Iterator[Sequence[SampleInProgress]]:
    """Yields runs of samples, in order, whose prompts fit into one forward pass."""
    first, tokens = 0, 0
    for number, sample in enumerate(samples):
        if number > first and tokens + len(sample.prompt) > PREFILL_TOKENS:
            yield samples[first:number]
            first, tokens = number, 0
        tokens += len(sample.prompt)
    yield samples[first:]
