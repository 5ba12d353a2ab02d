"""A job whose native engine gets copies of the weights over a socket."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from rlrun.runner.weights.buckets import WeightSet
from rlrun.runner.weights.carriers import socket_copy
from rlrun.runner.weights.carriers.reader import ReadingEngine
from rlrun.runner.weights.form import Form
from tests.local_job import run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "model" }
data = { path = "rows.jsonl" }
cluster = { threads = 1 }
rollout = { batch_size = 4, samples_per_prompt = 4, max_response_tokens = 8 }
rewards = [{ type = "length", max_tokens = 8, buffer = 8 }]
trainer = { steps = 3, lr = 3e-3, dtype = "float32" }
engine = { type = "native", dtype = "float32" }
"""


def test_a_job_equals_one_with_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_model(tmp_path / "model", scale=0.05)
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"prompt": f"say {n}"}) + "\n" for n in range(32))
    )
    (tmp_path / "job.toml").write_text(SPEC)
    sent, send = [], socket_copy._send
    monkeypatch.setattr(
        socket_copy, "_send", lambda engine, buffer: (sent.append(len(buffer)), send(engine, buffer))
    )
    override = ['engine.weight_sync="socket"']
    by_socket = run_local(tmp_path / "job.toml", tmp_path / "socket", override)
    assert len(sent) >= 3
    shared = run_local(tmp_path / "job.toml", tmp_path / "shared", port=2)
    assert by_socket.curve == shared.curve


def test_what_is_sent_is_read_and_a_closed_socket_is_named() -> None:
    shapes = {"a.weight": (3, 5), "norm.weight": (5,)}
    tensors = {name: torch.rand(shape) for name, shape in shapes.items()}
    spec, source = (
        SimpleNamespace(engine=SimpleNamespace(dtype="float32")),
        SimpleNamespace(job="t", shapes=shapes),
    )
    sender = socket_copy._Sender(spec, source)  # type: ignore[arg-type]
    manifest = sender.write(WeightSet(iter(tensors.items()), Form(torch.float32)), 4)
    engine = ReadingEngine(shapes, torch.device("cpu"), "t", ())
    for _ in range(2):
        model = socket_copy.SocketModel(manifest, engine)
        model.open(None)
        assert all(torch.equal(model.tensors[name], tensors[name]) for name in tensors)
    with pytest.raises(ValueError, match="bytes before their end"):
        socket_copy.SocketModel(replace(manifest, size=manifest.size + 1), engine).open(None)
    sender.close()
    with pytest.raises(ValueError, match="the socket cannot be read"):
        socket_copy.SocketModel(manifest, engine).open(None)
