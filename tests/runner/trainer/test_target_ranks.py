"""FSDP does not change what a trainer that rounds as SGLang's servers computes."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runner.trainer.target_worker import measure
from tests.runner.trainer.trainer_cases import run_ranks
from tests.tiny_models import make_tiny_model

WORKER = Path(__file__).with_name("target_worker.py")


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_log_probs_of_two_ranks_are_those_of_one(tied: bool, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", tied=tied, scale=0.1)
    threads = torch.get_num_threads()
    alone, norm = measure(str(folder))
    torch.set_num_threads(threads)
    run_ranks(WORKER, 2, str(folder), tmp_path)
    together = {}
    for rank in range(2):
        with np.load(tmp_path / f"{rank}.npz") as found:
            assert found["norm"] == pytest.approx(norm, rel=0.01)
            together |= {int(name): found[name] for name in found if name != "norm"}
    assert sorted(together) == sorted(alone) == list(range(8))
    for number, log_probs in together.items():
        assert np.array_equal(log_probs, alone[number]), number
