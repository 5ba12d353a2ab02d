from dataclasses import replace
from typing import Any

import pytest

from rlrun.models.config_json import architecture
from rlrun.runner.job.compute_budget import ComputeBudget, gpus_of_job
from rlrun.runner.planning.hardware import find_gpu
from rlrun.runner.planning.plan import make_plan
from tests.resolved_specs import resolved, resolved_trainer

MODEL = architecture(
    {
        "model_type": "qwen3",
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "vocab_size": 320,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "rms_norm_eps": 1e-6,
    }
)


@pytest.mark.parametrize(
    ("cluster", "counts"),
    [
        ({"gpus_per_node": 4}, (4, 4)),
        ({"gpus_per_node": 6, "placement": "disaggregated"}, (4, 2)),
        ({}, None),
    ],
)
def test_who_has_how_many(cluster: dict[str, Any], counts: tuple[int, int] | None) -> None:
    document = {
        "model": {"path": "a/b"},
        "data": {"type": "jsonl"},
        "trainer": {"steps": 1, "parallel": {"fsdp": 4}},
        "cluster": cluster,
    }
    plan = make_plan(resolved(document), cores=2)
    found = gpus_of_job(plan, MODEL, resolved_trainer(steps=1), find_gpu("H200"))
    assert (found and (found.trainer, found.engines)) == counts


def test_training_is_six_operations_a_parameter_and_attention_to_all_tokens_before() -> None:
    gpus = ComputeBudget(trainer=2, engines=2, flops=1e6, token_operations=6000, attention=10)
    work = gpus.training_flops([100, 10])
    assert work == 6 * (100 * (1000 + 10 * 100) + 10 * (1000 + 10 * 10))
    assert gpus.utilisation(work, seconds=4.0) == pytest.approx(work / 8e6)
    assert replace(gpus, flops=None).utilisation(work, 4.0) is None


def test_a_token_meets_every_matrix_once() -> None:
    plan = make_plan(
        resolved(
            {
                "model": {"path": "a/b"},
                "data": {},
                "trainer": {"steps": 1},
                "cluster": {"gpus_per_node": 1},
            }
        )
    )
    found = gpus_of_job(plan, MODEL, resolved_trainer(steps=1), None)
    assert found is not None and found.flops is None
    matrices = 2 * (64 * 12 * 16 + 3 * 64 * 96) + 64 * 320
    assert 6 * matrices < found.token_operations < 6.06 * matrices
    assert found.attention == 2 * 4 * 16
