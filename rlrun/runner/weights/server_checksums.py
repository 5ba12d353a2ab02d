"""Computes the checksums that the tensors of an SGLang server must have after an update.

A server fuses q, k, v into one matrix, gate and up into another, and splits them over tensor-parallel ranks:

    q_proj, k_proj, v_proj ──rows of rank r──▶ qkv_proj         o_proj, down_proj ──columns──▶ the same name
    gate_proj, up_proj     ──rows of rank r──▶ gate_up_proj     embedding, head   ──rows, padded──▶ the same

On a CPU, `/weights_checker` answers with the first eight bytes of SHA-256 over each tensor's bytes; on a GPU
with a hash of its own (rlrun.runner.weights.gpu_hash), which is computed where the buckets are. Experts and
quantised tensors are not compared, because servers may reorder them.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Literal, Protocol

import torch

from rlrun.models.architecture import Architecture
from rlrun.models.families.table import family_named
from rlrun.models.tensor_names import GATE_UP, QKV, text_tensors
from rlrun.runner.contracts.weight_updates import Checksums
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.gpu_hash import GpuHash, hexadecimal

Extent = Literal["sample", "all", "none"]
_CPU = torch.device("cpu")

_FUSED = dict.fromkeys(QKV, "qkv_proj") | dict.fromkeys(GATE_UP, "gate_up_proj")
_FUSED_MEMBER = re.compile(rf"\.({'|'.join(_FUSED)})\.")
_VOCABULARY = ("embed_tokens.weight", "lm_head.weight")
_WIDE = ("embed_tokens.weight", "norm.weight")
"""Servers with `rl_on_policy_target` hold these in float32, with the values that were sent."""
_VOCABULARY_STEP = 64
"""Servers pad the rows of the vocabulary to a multiple of this (SGLang's VocabParallelEmbedding)."""
_FEED_FORWARD_STEP = 32
"""Servers on CPUs pad each rank's rows of the feed-forward matrices to a multiple of this."""
_LAYER = re.compile(r"^model\.layers\.(\d+)\.")


class ChecksumRecorder:
    """Records the tensors of one update as they are sent, in the trainer's order."""

    def __init__(self, ranks: int, tensors: "ComparedTensors", device: torch.device = _CPU) -> None:
        """`ranks`: tensor-parallel ranks of each server. `device`: that of the trainer; servers run on the
        same kind of device.
        """
        self._tensors = tensors
        self._device = device
        self._hashes: list[Hashes] = [
            Sha256Hashes() if device.type == "cpu" else GpuHashes(device) for _ in range(ranks)
        ]

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Adds one tensor, in the engine's precision.

        A fused matrix is hashed piece by piece: its members are sent in the order of its rows.
        """
        fused_name = engine_name(name)
        if fused_name not in self._tensors.compared:
            return
        tensor = tensor.to(self._device, non_blocking=True)
        if self._tensors.wide and name.endswith(_WIDE):
            tensor = tensor.float()
        for rank, hashes in enumerate(self._hashes):
            hashes.add(fused_name, rank_part(name, tensor, rank, len(self._hashes), self._device))

    def checksums(self) -> Checksums:
        """Returns the checksums of all tensors that were added."""
        return Checksums(tuple(hashes.by_name() for hashes in self._hashes), self._tensors.left_out)


class Hashes(Protocol):
    """The hashes of one server rank's tensors."""

    def add(self, name: str, piece: torch.Tensor) -> None:
        """Adds a tensor, or the next piece of it."""

    def by_name(self) -> dict[str, str]:
        """Returns 16 hexadecimal digits of each tensor."""


class Sha256Hashes:
    """Hashes as a server on a CPU computes them."""

    def __init__(self) -> None:
        self._hashes: dict[str, hashlib._Hash] = {}

    def add(self, name: str, piece: torch.Tensor) -> None:
        """Adds a tensor in host memory, or the next piece of it."""
        # `numpy` fixes the size of a tensor's storage, and a trainer that lends its device empties storages
        data = piece.clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8).numpy()
        self._hashes.setdefault(name, hashlib.sha256()).update(data)

    def by_name(self) -> dict[str, str]:
        """Returns the first 16 hexadecimal digits of each tensor's SHA-256."""
        return {name: digest.hexdigest()[:16] for name, digest in self._hashes.items()}


class GpuHashes:
    """Hashes as a server on a GPU computes them; nothing is copied from the device before the end."""

    def __init__(self, device: torch.device) -> None:
        """`device`: where hashes are computed."""
        self._device = device
        self._hashes: dict[str, GpuHash] = {}
        self._unknown: set[str] = set()
        """Tensors with a piece that begins within a word: they are not compared."""

    def add(self, name: str, piece: torch.Tensor) -> None:
        """Adds a tensor on the device, or the next piece of it."""
        known = self._hashes.setdefault(name, GpuHash(self._device))
        if known.is_aligned:
            known.add(piece)
        else:
            self._unknown.add(name)

    def by_name(self) -> dict[str, str]:
        """Returns the hash of each tensor; one copy from the device brings all of them."""
        known = {name: digest for name, digest in self._hashes.items() if name not in self._unknown}
        totals = [digest.finish() for digest in known.values()]
        return dict(zip(known, hexadecimal(totals), strict=True)) if known else {}


class ComparedTensors:
    """Chooses which of an engine's tensors are compared after an update."""

    def __init__(
        self,
        model: Architecture,
        extent: Extent,
        version: int,
        form: Form,
        ranks: int,
        *,
        wide: bool = False,
    ) -> None:
        """`wide`: servers hold embeddings and norms in float32, whatever is sent.

        `extent`: "all" compares everything that can be compared. "sample" compares every vector, since
        every layer has some and a lost bucket therefore shows, and the matrices of one layer (or embedding
        and head), which alternates with the version.
        """
        self.wide = wide
        layer_in_turn = version % (model.layers + 1)
        compared: list[str] = []
        left_out: list[str] = []
        for name, shape in _comparable(model, form, ranks):
            is_small = len(shape) == 1 and not name.endswith("_proj.bias")
            is_in_turn = _layer(name, model) == layer_in_turn
            is_compared = extent == "all" or is_small or is_in_turn
            (compared if is_compared else left_out).append(engine_name(name))
        self.compared = frozenset(compared)
        self.left_out = tuple(dict.fromkeys([*left_out, *_experts(model)]))


def engine_name(name: str) -> str:
    """Returns a server's name of a tensor: `…self_attn.q_proj.weight` -> `…self_attn.qkv_proj.weight`."""
    return _FUSED_MEMBER.sub(lambda match: f".{_FUSED[match[1]]}.", name)


def rank_part(
    name: str, tensor: torch.Tensor, rank: int, ranks: int, device: torch.device = _CPU
) -> torch.Tensor:
    """Returns the part of a tensor that tensor-parallel rank `rank` of `ranks` holds.

    Where the parts would differ in size, a server on a CPU pads the last ones with zeros. On a GPU only the
    vocabulary is padded: the server refuses other sizes that do not divide.
    """
    feed_forward_step = (_FEED_FORWARD_STEP if device.type == "cpu" else 1) * ranks
    if name.endswith(_VOCABULARY):
        step = _VOCABULARY_STEP
        step = step if _round_up(len(tensor), step) % ranks == 0 else step * ranks
        return _padded_rows(tensor, rank, ranks, step)
    if name.endswith(".down_proj.weight"):
        return _padded_rows(tensor.T, rank, ranks, feed_forward_step).T
    if name.endswith(".o_proj.weight"):
        return tensor.chunk(ranks, dim=1)[rank]
    match = _FUSED_MEMBER.search(name)
    if match is None:
        return tensor
    if match[1] in GATE_UP:
        return _padded_rows(tensor, rank, ranks, feed_forward_step)
    return tensor.chunk(ranks)[rank]


def _padded_rows(tensor: torch.Tensor, rank: int, ranks: int, step: int) -> torch.Tensor:
    """Returns one rank's rows after the number of all rows is padded to the next multiple of `step`."""
    rows = _round_up(len(tensor), step) // ranks
    part = tensor[rank * rows : (rank + 1) * rows]
    return torch.nn.functional.pad(part, (0, 0) * (tensor.ndim - 1) + (0, rows - len(part)))


def _round_up(number: int, step: int) -> int:
    return -(-number // step) * step


def _comparable(model: Architecture, form: Form, ranks: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yields the tensors whose layout and precision in a server are known.

    Where the heads do not divide by the ranks, only norms are compared that every rank holds as a whole.
    """
    divides_heads = model.heads % ranks == 0 and model.kv_heads % ranks == 0
    layout_is_known = family_named(model.family).server.layout and divides_heads
    for tensor in text_tensors(model):
        is_plain = tensor.expert is None and len(form.described(tensor.name, tensor.shape)) == 1
        # the servers of multimodal checkpoints have names of their own
        is_text_model = model.prefix == "model." and model.vision is None
        is_norm = tensor.name.endswith("norm.weight") and is_text_model
        # ranks divide the weights of a norm over all heads (SGLang's MiniMaxM2RMSNormTP)
        is_divided = (
            model.joint_qk_norm and ranks > 1 and tensor.name.endswith(("q_norm.weight", "k_norm.weight"))
        )
        is_known = layout_is_known or (is_norm and not is_divided)
        if is_plain and is_known:
            yield tensor.name, tensor.shape


def _experts(model: Architecture) -> Iterator[str]:
    """Yields a server's names of experts: they are not compared, so it need not compute their checksums."""
    if model.experts:
        for layer in sorted(model.experts.layers):
            yield f"model.layers.{layer}.mlp.experts."


def _layer(name: str, model: Architecture) -> int:
    """Returns the number of the tensor's layer; for embedding and head, the number of layers."""
    match = _LAYER.match(name)
    return int(match[1]) if match else model.layers
