"""Hashes as SGLang's kernel for GPUs computes them.

The expected values were printed by the kernel of SGLang 0.5.23 itself (gpu_tensor_hash.py), run on a CPU by
Triton 3.9.0 with TRITON_INTERPRET=1.
"""

import pytest
import torch

from rlrun.runner.weights import gpu_hash
from rlrun.runner.weights.gpu_hash import GpuHash, hexadecimal
from rlrun.runner.weights.server_checksums import GpuHashes, rank_part

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ROWS = {
    "half a word at the end": (5, torch.bfloat16, "8c44e7d476dee48b"),
    "a vector": (16, torch.float32, "0596753496195237"),
    "one tile": (8192, torch.float32, "04f23c05b0b544c9"),
    "a part of a tile at the end": (23310, torch.bfloat16, "095bde5431b19e3d"),
    "several tiles": (32768, torch.float32, "c34cac813b44f3b5"),
}


def numbers(count: int, dtype: torch.dtype) -> torch.Tensor:
    return ((torch.arange(count) * 2654435761) % 65521).to(torch.float32).div(997).to(dtype)


def hash_of(*pieces: torch.Tensor) -> str:
    whole = GpuHash(CPU)
    for piece in pieces:
        whole.add(piece)
    [text] = hexadecimal([whole.finish()])
    return text


@pytest.mark.parametrize("name", ROWS)
def test_hashes_equal_the_servers_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count, dtype, expected = ROWS[name]
    tensor = numbers(count, dtype)
    assert hash_of(tensor) == expected
    monkeypatch.setattr(gpu_hash, "_CHUNK_TILES", 1)
    assert hash_of(tensor) == expected
    if count > 5:
        assert hash_of(tensor[:6], tensor[6:14], tensor[14:]) == expected


def test_one_changed_or_moved_number_changes_the_hash() -> None:
    tensor = numbers(20_000, torch.bfloat16)
    changed, swapped = tensor.clone(), tensor.clone()
    changed[12_345] += 1
    swapped[[3, 15_000]] = swapped[[15_000, 3]]
    assert len({hash_of(tensor), hash_of(changed), hash_of(swapped)}) == 3


def test_pieces_of_a_fused_matrix_are_hashed_as_one_and_unaligned_ones_are_left_out() -> None:
    hashes = GpuHashes(CPU)
    q, k, v = (numbers(6 * size, torch.bfloat16).view(-1, 6) for size in (4, 2, 2))
    for piece in (q, k, v):
        hashes.add("qkv", piece)
    for piece in (numbers(3, torch.bfloat16), numbers(2, torch.bfloat16)):
        hashes.add("odd", piece)
    assert hashes.by_name() == {"qkv": hash_of(torch.cat([q, k, v]))}


def test_a_server_on_gpus_does_not_pad_feed_forward_matrices() -> None:
    tensor = torch.ones(96, 4)
    name = "model.layers.0.mlp.up_proj.weight"
    assert rank_part(name, tensor, 1, 2, CPU).shape == (64, 4)
    assert rank_part(name, tensor, 1, 2, CUDA).shape == (48, 4)
    assert rank_part("model.layers.0.mlp.down_proj.weight", tensor.T, 1, 2, CUDA).shape == (4, 48)
