"""Weights over a Unix socket arrive in the folder that a server is told to read."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from rlrun.runner.weights.carriers.table import CARRIERS
from tests.sglang_cpu.policies import LocalPolicy
from tests.tiny_models import make_tiny_model


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for file in folder.iterdir() for name, tensor in load_file(file).items()}


class Server:
    async def read_folder(
        self, path: str, bodies: Sequence[bytes], deltas: Sequence[bytes], checksums: object
    ) -> int:
        body = json.loads(bodies[0])
        self.tensors = tensors_in(Path(body["model_path"]))
        return int(body["weight_version"])


async def test_every_tensor_arrives(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    policy = LocalPolicy(model, tmp_path, weight_sync="unix_socket")
    server = Server()
    for version in (1, 2):
        update = policy.write(model, version)
        assert await update.give(server) == version  # type: ignore[union-attr, arg-type]
        stored = load_file(model / "model.safetensors")
        assert server.tensors.keys() == policy.shapes.keys()
        assert all(torch.equal(server.tensors[name], stored[name].float()) for name in policy.shapes)
    policy.writer.close()
    assert "unix_socket" in CARRIERS
