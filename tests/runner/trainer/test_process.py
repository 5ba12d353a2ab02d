"""The device of a rank: what the spec says, or an error."""

from typing import Literal

import pytest

from rlrun.runner.trainer.process import check_device


@pytest.mark.parametrize(
    ("planned", "sees_gpu", "error"),
    [
        pytest.param("cpu", False, None, id="CPU job"),
        pytest.param("cuda", True, None, id="GPU job"),
        pytest.param("cpu", True, "cluster.gpus_per_node = 0", id="CPU job that sees a GPU"),
        pytest.param(
            "cuda", False, "CUDA_VISIBLE_DEVICES=3.* sees none: check nvidia-smi", id="GPU not seen"
        ),
    ],
)
def test_a_rank_computes_on_the_device_of_the_spec_or_not_at_all(
    planned: Literal["cpu", "cuda"], sees_gpu: bool, error: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    if error is None:
        check_device(planned, sees_gpu=sees_gpu)
        return
    with pytest.raises(ValueError, match=error):
        check_device(planned, sees_gpu=sees_gpu)
