"""What the processes of an SGLang server must hold after an update, as SHA-256 of each of its tensors.

A server keeps q, k, v as one matrix, gate and up as another, and gives each tensor-parallel rank its part:

    q_proj, k_proj, v_proj ──rows of rank r──▶ qkv_proj         o_proj, down_proj ──columns──▶ the same name
    gate_proj, up_proj     ──rows of rank r──▶ gate_up_proj     embedding, head   ──rows, padded──▶ the same

`/weights_checker` answers with the first eight bytes of SHA-256 over a tensor's bytes, on a CPU. Experts, and
what a server keeps in eight bits, are not compared: servers may reorder them.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Literal

import torch

from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import hf_tensors
from rlrun.runner.contracts.carriers import Checksums
from rlrun.runner.weights.form import Form

Extent = Literal["sample", "all", "none"]

_FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}
_PART = re.compile(r"\.(q_proj|k_proj|v_proj|gate_proj|up_proj)\.")
_FAMILIES = ("llama", "qwen2", "qwen3", "qwen3_moe")
"""Of others, and where heads do not divide by the ranks, norms alone are compared."""
_VOCABULARY = ("embed_tokens.weight", "lm_head.weight")
_VOCABULARY_STEP = 64
_FEED_FORWARD_STEP = 32
"""Of each rank."""
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


class Fingerprints:
    """Takes the tensors of one update as they pass, in the trainer's order, and says what must arrive."""

    def __init__(self, ranks: int, chosen: "Choice") -> None:
        self._ranks = ranks
        self._chosen = chosen
        self._found: list[dict[str, hashlib._Hash]] = [{} for _ in range(ranks)]

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """One tensor of the trainer, as the engine gets it."""
        held = engine_name(name)
        if held not in self._chosen.looked_at:
            return
        for rank, found in enumerate(self._found):
            part = rank_part(name, tensor, rank, self._ranks)
            data = part.contiguous().view(-1).view(torch.uint8).numpy()
            found.setdefault(held, hashlib.sha256()).update(data)

    def checksums(self) -> Checksums:
        """Of everything that passed."""
        ranks = tuple({name: one.hexdigest()[:16] for name, one in found.items()} for found in self._found)
        return Checksums(ranks, self._chosen.left_out)


class Choice:
    """Which of an engine's tensors are looked at after an update."""

    def __init__(self, model: Architecture, extent: Extent, version: int, form: Form, ranks: int) -> None:
        """`sample`: every vector (norms and biases lie in every layer, so that a lost bucket shows), and the
        matrices of one layer, or embedding and head, in turn by version. `all`: everything.
        """
        turn = version % (model.layers + 1)
        looked_at: list[str] = []
        left_out: list[str] = []
        for name, shape in _comparable(model, form, ranks):
            small = len(shape) == 1 and not name.endswith("_proj.bias")
            mine = _layer(name, model) == turn
            (looked_at if extent == "all" or small or mine else left_out).append(engine_name(name))
        self.looked_at = frozenset(looked_at)
        self.left_out = tuple(dict.fromkeys([*left_out, *_experts(model)]))


def engine_name(name: str) -> str:
    """`model.layers.0.self_attn.q_proj.weight` -> `model.layers.0.self_attn.qkv_proj.weight`."""
    return _PART.sub(lambda match: f".{_FUSED[match[1]]}.", name)


def rank_part(name: str, tensor: torch.Tensor, rank: int, ranks: int) -> torch.Tensor:
    """What tensor-parallel rank `rank` of `ranks` holds of a tensor; where parts are of unequal size a server
    on a CPU fills them up with zeros.
    """
    if name.endswith(_VOCABULARY):
        step = _VOCABULARY_STEP
        return _part(tensor, rank, ranks, step if _up(len(tensor), step) % ranks == 0 else step * ranks)
    if name.endswith(".down_proj.weight"):
        return _part(tensor.T, rank, ranks, _FEED_FORWARD_STEP * ranks).T
    if name.endswith(".o_proj.weight"):
        return tensor.chunk(ranks, dim=1)[rank]
    match = _PART.search(name)
    if match is None:
        return tensor
    if match[1] in ("gate_proj", "up_proj"):
        return _part(tensor, rank, ranks, _FEED_FORWARD_STEP * ranks)
    return tensor.chunk(ranks)[rank]


def _part(tensor: torch.Tensor, rank: int, ranks: int, step: int) -> torch.Tensor:
    """Rows of one rank when their number goes up to the next multiple of `step`."""
    rows = _up(len(tensor), step) // ranks
    part = tensor[rank * rows : (rank + 1) * rows]
    return torch.nn.functional.pad(part, (0, 0) * (tensor.ndim - 1) + (0, rows - len(part)))


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def _comparable(model: Architecture, form: Form, ranks: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Tensors whose place and precision in a server are known."""
    known = model.family in _FAMILIES and not (model.heads % ranks or model.kv_heads % ranks)
    for tensor in hf_tensors(model):
        plain = tensor.expert is None and len(form.described(tensor.name, tensor.shape)) == 1
        if plain and (known or tensor.name.endswith("norm.weight")):
            yield tensor.name, tensor.shape


def _experts(model: Architecture) -> Iterator[str]:
    """Names that a server has for a layer's experts: not compared, so not to be computed."""
    if model.experts:
        for layer in sorted(model.experts.layers):
            yield f"model.layers.{layer}.mlp.experts."


def _layer(name: str, model: Architecture) -> int:
    """A layer's number; for embedding and head, which come after the layers, their count."""
    match = _LAYER.match(name)
    return int(match[1]) if match else model.layers
