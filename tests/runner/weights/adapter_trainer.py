"""A trainer that hands random adapters of a tiny model to SGLang servers."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from rlrun.converters.families.merged_weights import merge_factors
from rlrun.models.adapters import PEFT_PREFIX, LoraShape, adapter_tensors, adapters
from rlrun.models.config_json import read_architecture
from rlrun.models.tensor_names import hf_tensors
from rlrun.runner.contracts.weight_updates import StoredWeights
from rlrun.runner.weights.carriers.table import carrier_for
from rlrun.runner.weights.rank_weights import RankAdapters
from tests.resolved_specs import resolved

LORA = LoraShape(4, 3.0, rslora=True)
ROOM = 4
"""How many versions a server has room for."""


class Trainer:
    """Writes adapters that are drawn at random, or adapters of another model."""

    def __init__(self, folder: Path, weights: Path, **engine: Any) -> None:
        engine = {"type": "sglang", "dtype": "float32"} | engine
        spec = {"model": {"path": str(folder)}, "data": {}, "engine": engine}
        spec |= {"rollout": {"mode": "async", "max_staleness": ROOM - 2}, "trainer": {"steps": 1, "lora": {}}}
        self.architecture = read_architecture(folder)
        stored = load_file(folder / "model.safetensors")
        self.base = {tensor.name: stored[tensor.name] for tensor in hf_tensors(self.architecture)}
        self.factors: dict[str, torch.Tensor] = {}
        tensors = adapter_tensors(adapters(self.architecture, LORA))
        self.shapes = {tensor.name: tensor.shape for tensor in tensors}
        source = RankAdapters(
            rank=0,
            model=self.architecture,
            shapes=self.shapes,
            gather=lambda dtype: iter(self.factors.items()),
            device=torch.device("cpu"),
            job="test",
            folder=weights,
            lora=LORA,
            base_shapes={name: tuple(tensor.shape) for name, tensor in self.base.items()},
            base_dtype="float32",
            gather_base=lambda dtype: iter(self.base.items()),
        )
        job = resolved(spec)
        self.writer = carrier_for(job).adapter_writer(job, source)

    def write(self, version: int) -> StoredWeights:
        generator = torch.Generator().manual_seed(version)
        self.factors = {
            name: torch.randn(shape, generator=generator) * 0.2 for name, shape in self.shapes.items()
        }
        update = self.writer.write(version)
        assert update is not None
        return update

    def merged(self) -> dict[str, torch.Tensor]:
        """The model with the adapters that were written last."""
        merged = dict(self.base)
        for name, up in self.factors.items():
            if name.endswith(".lora_B.weight"):
                matrix = name.removeprefix(PEFT_PREFIX).replace(".lora_B", "")
                down = self.factors[name.replace("lora_B", "lora_A")]
                merged[matrix] = merge_factors(self.base[matrix], up, down, LORA.scale)
        return merged
