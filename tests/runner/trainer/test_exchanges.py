"""Exchanges by DeepEP, and overlapped with products, give what plain collectives give; their kernels are
replaced by CPU ones with the same contract.
"""

from pathlib import Path

import pytest
import torch

from rlrun.runner.trainer.gpu_support import check_support
from rlrun.specs.sections.trainer import ParallelSpec
from tests.runner.trainer.trainer_cases import MODELS, run_ranks
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("exchange_worker.py")
DEEPEP, ASYNC = {"token_dispatcher": "deepep"}, {"async_tensor": True}
FULL = {"activation_checkpointing": "full"}
CASES = [
    ("qwen3-moe", {"fsdp": 2, "expert": 2}, DEEPEP, {}),
    ("qwen3-moe", {"tensor": 2, "expert": 2}, DEEPEP, FULL),
    ("gpt-oss", {"context": 2, "expert": 2}, DEEPEP, {}),
    ("qwen3", {"tensor": 2}, ASYNC, {}),
    ("qwen2", {"tensor": 2}, ASYNC, FULL),
    ("qwen3-moe", {"tensor": 2, "expert": 2}, ASYNC | DEEPEP, {}),
]
MODULES = {"token_dispatcher": "BufferedDispatcher", "async_tensor": "_OverlappedQKV"}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What two ranks gave in each case, with its exchange and with plain collectives."""
    root = tmp_path_factory.mktemp("exchanges")
    folders = {
        name: str(make_tiny_model(root / name, pad_token_id=None, scale=0.1, **MODELS[name]))
        for name in {model for model, *_ in CASES}
    }
    settings = {"max_grad_norm": 1e9, "logits_chunk": 16}
    arguments = [
        {
            "name": f"{number}-{kind}",
            "folder": folders[model],
            "parallel": layout | (exchange if kind == "new" else {}),
            "trainer": settings | trainer,
        }
        for number, (model, layout, exchange, trainer) in enumerate(CASES)
        for kind in ("plain", "new")
    ]
    run_ranks(WORKER, 2, arguments, root)
    return {
        (number, kind): [
            torch.load(root / f"{number}-{kind}-{rank}.pt", weights_only=False) for rank in (0, 1)
        ]
        for number in range(len(CASES))
        for kind in ("plain", "new")
    }


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_step_is_the_same_with_another_exchange(number, results):
    plain, new = results[number, "plain"], results[number, "new"]
    *_, exchange, _ = CASES[number]
    for name in exchange:
        assert MODULES[name] in new[0]["modules"] and MODULES[name] not in plain[0]["modules"]
    for ours, theirs in zip(new, plain, strict=True):
        assert ours["log_probs"].keys() == theirs["log_probs"].keys()
        for i, log_probs in theirs["log_probs"].items():
            torch.testing.assert_close(
                *map(torch.from_numpy, (ours["log_probs"][i], log_probs)), atol=1e-5, rtol=0
            )
    assert new[0]["gradients"].keys() == plain[0]["gradients"].keys()
    for name, gradient in plain[0]["gradients"].items():
        torch.testing.assert_close(new[0]["gradients"][name], gradient, atol=1e-5, rtol=0)
    assert new[0]["metrics"]["train/grad_norm"] == pytest.approx(
        plain[0]["metrics"]["train/grad_norm"], rel=1e-5
    )


GPU, CPU = torch.device("cuda", 0), torch.device("cpu")


@pytest.mark.parametrize(
    ("setting", "device", "capability", "message"),
    [
        (DEEPEP | {"expert": 2}, CPU, (0, 0), "needs GPUs from Hopper on, and this rank has a CPU"),
        (DEEPEP | {"expert": 2}, GPU, (8, 0), "this rank has NVIDIA A100"),
        (DEEPEP | {"expert": 2}, GPU, (9, 0), "DeepEP 2, whose package deep_ep .* install it from https"),
        ({"symmetric_memory": True}, GPU, (8, 9), "symmetric_memory = true needs GPUs from Hopper on"),
        (ASYNC, GPU, (7, 5), "async_tensor = true needs GPUs from Ampere on"),
    ],
)
def test_a_rank_that_cannot_run_an_exchange_says_so(monkeypatch, setting, device, capability, message):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100")
    with pytest.raises(ValueError, match=message):
        check_support(ParallelSpec(fsdp=2, tensor=2, **setting), device)
