"""Hands adapters alone to SGLang servers, which were started with the frozen model.

once           checksums of the frozen model ─▶ compared with every server's
each update    factors ─▶ a carrier's buffer or folder ─▶ every server loads them as `policy-v<version>`
"""

from abc import abstractmethod
from dataclasses import replace

from rlrun.converters.families.adapter_folder import peft_config
from rlrun.converters.tensors.precision import parse_dtype
from rlrun.models.adapters import adapters
from rlrun.runner.contracts.weight_updates import Checksums, StoredWeights
from rlrun.runner.weights.buckets import plan_buckets
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.rank_weights import RankAdapters, Tensors, on_first_rank
from rlrun.runner.weights.server_checksums import ChecksumRecorder, ComparedTensors
from rlrun.runner.weights.writer import Writer
from rlrun.specs.derived.engine_groups import server_ranks
from rlrun.specs.derived.lora_sync import adapter_room
from rlrun.specs.sections.job import Spec


class ServerAdapterWriter(Writer):
    """Stores the factors of each version, and once the checksums of the frozen model."""

    def __init__(self, spec: Spec, source: RankAdapters) -> None:
        self._spec, self._source = spec, source
        self._form = Form(parse_dtype(spec.engine.dtype))
        [self._bucket] = plan_buckets(source.shapes, self._form, None)
        # SGLang does not read `use_rslora`: alpha is such that alpha / rank is the scale.
        plain = replace(source.lora, alpha=source.lora.scale * source.lora.rank, rslora=False)
        self._config = peft_config(adapters(source.model, plain), plain)
        self._room = adapter_room(spec)
        self._base: Checksums | None = None
        self._has_base = False

    def write(self, version: int) -> StoredWeights | None:
        """Stores the current factors, the first time with the frozen model's checksums; see Writer."""
        if not self._has_base:
            self._base = self._base_checksums()
            self._has_base = True
        source = self._source
        tensors = source.gather(self._form.dtype)
        return on_first_rank(source.rank, tensors, lambda tensors: self._store(tensors, version))

    @abstractmethod
    def _store(self, tensors: Tensors, version: int) -> StoredWeights: ...

    def _base_checksums(self) -> Checksums | None:
        """Returns the checksums of the whole frozen model on rank 0; collective."""
        source, engine = self._source, self._spec.engine
        if engine.weight_check == "none":
            return None
        ranks = server_ranks(self._spec)
        compared = ComparedTensors(source.model, "all", 0, self._form, ranks)

        def record(tensors: Tensors) -> Checksums:
            recorder = ChecksumRecorder(ranks, compared, source.device)
            for name, tensor in tensors:
                recorder.add(name, tensor)
            return recorder.checksums()

        return on_first_rank(source.rank, source.gather_base(self._form.dtype), record)
