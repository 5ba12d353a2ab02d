from tests.runner.trainer.trainer_cases import make_rank, make_sequences, make_spec, plan
from tests.tiny_models import make_tiny_model


def test_load_is_that_of_one_step(tmp_path):
    folder = make_tiny_model(tmp_path / "moe", "qwen3_moe", pad_token_id=None)
    spec = make_spec(folder, lr=1e-9, weight_decay=0.0)
    rank = make_rank(folder, spec)
    sequences = make_sequences()
    try:
        loads = []
        for _ in range(2):
            (metrics,) = rank.policy.train(sequences, plan(sequences, spec))
            loads.append((metrics["train/expert_load_max"], metrics["train/expert_load_min"]))
        assert loads[0] == loads[1]
        most, least = loads[0]
        assert 0 <= least < 1 < most <= 4  # of 4 experts
    finally:
        rank.close()
