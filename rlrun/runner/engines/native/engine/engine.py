"""The native engine: generates, scores, pauses, sleeps and takes new weights.

Its methods only post work to the engine's thread (`thread.py`), which owns the scheduler (`scheduler.py`).
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Literal, NoReturn

import torch

from rlrun.runner.engines.native.engine.loading import LoadedEngine
from rlrun.runner.engines.native.engine.merging import AdapterMerger
from rlrun.runner.engines.native.engine.pinned_segments import PinnedSegments
from rlrun.runner.engines.native.engine.requests import SampleInProgress, group_samples
from rlrun.runner.engines.native.engine.scheduler import PREFILL_TOKENS
from rlrun.runner.engines.native.engine.thread import EngineThread
from rlrun.runner.engines.native.engine.weight_deltas import DeltaFiles, apply_deltas, check_base
from rlrun.runner.engines.native.model.cache import KVCache, make_cache
from rlrun.runner.engines.native.model.fused_weights import fuse
from rlrun.runner.engines.native.model.layer_weights import ModelWeights, Tensors
from rlrun.runner.engines.native.model.weight_folder import OpenFolder, allocate, check_shapes
from rlrun.runner.weights.carriers.native.shared_memory import AttachedWeights, attach
from rlrun.runner.weights.carriers.native.updates import SegmentAdapters, WeightManifest

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
        self._attached_segment: AttachedWeights | None = None
        self._plain_tensors: Tensors = {}
        """The weights before they are packed, for deltas to change; empty if engines get no deltas."""
        self._merger = AdapterMerger(loaded.architecture)
        self._pinned_segments = PinnedSegments()
        self._thread = EngineThread(loaded.scheduler, self._release_memory, threads)

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
        if sample.reports_experts and (architecture.experts is None or architecture.stored_tensors):
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

    def load_shared(self, manifest: WeightManifest) -> "Future[None]":
        """Adopts a shared-memory segment's weights between two steps; on a CPU without a copy.

        Raises ValueError, and keeps the old weights, where the segment does not hold the whole model.
        """
        architecture, current = self.loaded.architecture, self._scheduler.model.weights.norm
        check_shapes({slot.name: slot.shape for slot in manifest.tensors}, architecture, manifest.segment)
        attached = attach(manifest)
        if current.device.type != "cpu" or any(t.dtype != current.dtype for t in attached.tensors.values()):
            return self._thread.call(lambda: self._copy(attached, manifest.version))
        weights = fuse(attached.tensors, architecture)
        return self._thread.call(lambda: self._swap(weights, manifest.version, attached, attached.tensors))

    def load_adapters(self, update: SegmentAdapters) -> "Future[None]":
        """Merges a version's adapters into the model between two steps.

        The future raises ValueError, and the old weights stay, where the segments do not fit the model.
        """
        return self._thread.call(lambda: self._merge(update))

    def load_folder(self, folder: str, version: int) -> "Future[None]":
        """Reads a model folder: in the caller's thread where weights are packed afterwards, as on a CPU, and
        otherwise between two steps and into the memory of the old weights, since a GPU may have no room for
        both.

        Raises ValueError, and keeps the old weights, where the folder does not fit the model.
        """
        architecture, current = self.loaded.architecture, self._scheduler.model.weights.norm
        opened = OpenFolder(folder, architecture)
        if not self._scheduler.model.packs:
            return self._thread.call(lambda: self._read_in_place(opened, version))
        named = allocate(architecture, current.dtype, current.device)
        opened.read(named)
        weights = fuse(named, architecture)
        return self._thread.call(lambda: self._swap(weights, version, None, self._tower_tensors(opened)))

    def load_deltas(self, folder: str | None, deltas: Sequence[DeltaFiles], version: int) -> "Future[None]":
        """Reads a model folder, unless it is None, and applies the deltas after it, between two steps.

        The future raises ValueError where the folder or a delta does not fit; the old weights stay if that is
        known before anything is written.
        """
        return self._thread.call(lambda: self._apply(folder, deltas, version))

    # -- the methods below run in the engine's thread

    def _score(self, samples: Sequence[SampleInProgress]) -> None:
        prompts, images = [sample.prompt for sample in samples], [sample.images for sample in samples]
        num_top = max(sample.num_top for sample in samples)
        for sample, scores in zip(samples, self._scheduler.score(prompts, images, num_top), strict=True):
            sample.prompt_log_probs = scores.log_probs
            if sample.num_top:
                sample.top_ids, sample.top_log_probs = scores.top_ids, scores.top_log_probs
            sample.finish = {"type": "length", "length": 0}

    def _copy(self, attached: AttachedWeights, version: int) -> None:
        """Copies weights of another device or dtype."""
        owned, device = self._own_tensors(), self._scheduler.model.device
        on_gpu = device.type == "cuda"
        sources = self._pinned_segments.tensors(attached) if on_gpu else attached.tensors
        for name, tensor in owned.items():
            tensor.copy_(sources[name], non_blocking=True)
        if (tower := self._scheduler.model.tower) is not None:
            tower.update(attached.tensors)
        if on_gpu:
            torch.cuda.synchronize(device)  # the trainer may write into the segment once it is closed
        attached.close()
        self._swap(fuse(owned, self.loaded.architecture), version, None)

    def _read_in_place(self, opened: OpenFolder, version: int) -> None:
        """Reads new weights tensor by tensor into the memory of the old ones.

        Raises ValueError where that fails half-way; the engine has no weights then until the next update.
        """
        owned = self._own_tensors()
        try:
            opened.read(owned)
        except Exception as error:
            self._lose_weights(error)
        self._swap(fuse(owned, self.loaded.architecture), version, None, self._tower_tensors(opened))

    def _apply(self, folder: str | None, deltas: Sequence[DeltaFiles], version: int) -> None:
        """Changes the plain tensors, then packs them again."""
        opened = None if folder is None else OpenFolder(folder, self.loaded.architecture)
        if opened is None:
            check_base(deltas, self.version, has_weights=bool(self._plain_tensors))
        plain = self._plain_tensors or self._own_tensors()
        try:
            if opened is not None:
                opened.read(plain)
            apply_deltas(deltas, plain)
        except Exception as error:
            self._lose_weights(error)
        self._plain_tensors = plain
        tower_tensors = {} if opened is None else self._tower_tensors(opened)
        self._swap(fuse(plain, self.loaded.architecture), version, None, tower_tensors)

    def _lose_weights(self, error: Exception) -> NoReturn:
        """Ends all samples, and raises ValueError: the engine has no weights until the next update."""
        self._scheduler.abort(lambda sample: True, "new weights could not be read")
        self._scheduler.model.release_weights()
        self._plain_tensors = {}
        self.released_parts.add("weights")
        raise ValueError(
            f"new weights could not be read, and the old ones are partly replaced: {error}"
        ) from error

    def _tower_tensors(self, opened: OpenFolder) -> Tensors:
        """Returns the tensors of the vision tower in a folder, which has them if the tower is trained."""
        vision = self.loaded.architecture.vision
        names = [] if vision is None else [f"{vision.prefix}{name}" for name, _ in vision.tensors()]
        return opened.present(names)

    def _own_tensors(self) -> Tensors:
        """Returns the tensors to write new weights into: the current ones, unless another process owns their
        memory, or they are released or packed.
        """
        weights = self._scheduler.model.weights
        if weights.named and self._attached_segment is None:
            return weights.named
        return allocate(self.loaded.architecture, weights.norm.dtype, weights.norm.device)

    def _merge(self, update: SegmentAdapters) -> None:
        owned = self._own_tensors()
        self._merger.merge(update, owned)
        self._swap(fuse(owned, self.loaded.architecture), update.version, None)

    def _swap(
        self,
        weights: ModelWeights,
        version: int,
        attached: AttachedWeights | None,
        tower_tensors: Tensors | None = None,
    ) -> None:
        """Uses new weights from the next step on; `tower_tensors` may have those of the vision tower."""
        self._scheduler.set_weights(weights, version)
        if (tower := self._scheduler.model.tower) is not None:
            tower.update(tower_tensors or {})
        self.released_parts.discard("weights")
        self._drop_old_weights()
        self._attached_segment = attached

    def _release_memory(self) -> None:
        """Lets go of everything that is mapped, when the thread ends."""
        self._drop_old_weights()
        self._merger.close()
        self._pinned_segments.close()

    def _drop_old_weights(self) -> None:
        """Lets go of the segment of weights that are no longer used."""
        segment, self._attached_segment = self._attached_segment, None
        if segment is not None:
            segment.close()


def _split_into_passes(samples: Sequence[SampleInProgress]) -> Iterator[Sequence[SampleInProgress]]:
    """Yields runs of samples, in order, whose prompts fit into one forward pass."""
    first, tokens = 0, 0
    for number, sample in enumerate(samples):
        if number > first and tokens + len(sample.prompt) > PREFILL_TOKENS:
            yield samples[first:number]
            first, tokens = number, 0
        tokens += len(sample.prompt)
    yield samples[first:]
