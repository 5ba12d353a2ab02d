import pytest

from rlrun.models.config_json import architecture
from rlrun.runner.planning.rank_layout import (
    Coordinates,
    check_layout,
    coordinates,
    data_rank,
    is_data_rank_leader,
    schedulable_micro_batches,
    stages_of_rank,
    token_multiple,
)
from rlrun.specs.sections.trainer import ParallelSpec


def test_tensor_parallel_neighbours_share_their_data():
    parallel = ParallelSpec(fsdp=2, replicate=2, tensor=2)
    assert [data_rank(rank, parallel) for rank in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [rank for rank in range(8) if is_data_rank_leader(rank, parallel)] == [0, 2, 4, 6]


def test_pipelines_are_outermost_and_share_their_data():
    parallel = ParallelSpec(pipeline=2, fsdp=2, context=2)
    assert coordinates(5, parallel) == Coordinates(pipeline=1, replicate=0, fsdp=0, context=1, tensor=0)
    assert [data_rank(rank, parallel) for rank in range(8)] == [0, 0, 1, 1, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("schedule", "stages", "speaking"),
    [
        ("1F1B", [(0,), (1,), (2,)], [2]),
        ("Interleaved1F1B", [(0, 3), (1, 4), (2, 5)], [2]),
        ("ZBVZeroBubble", [(0, 5), (1, 4), (2, 3)], [0]),
        ("DualPipeV", [(0, 5), (1, 4), (2, 3)], [0]),
    ],
)
def test_the_rank_of_the_last_stage_speaks(schedule, stages, speaking):
    parallel = ParallelSpec(pipeline=3, pipeline_schedule=schedule)
    assert [stages_of_rank(place, parallel) for place in range(3)] == stages
    assert [rank for rank in range(3) if is_data_rank_leader(rank, parallel)] == speaking


@pytest.mark.parametrize(
    ("schedule", "counts"),
    [
        ("1F1B", {1: 2, 2: 2, 5: 5}),
        ("GPipe", {1: 1, 5: 5}),
        ("Interleaved1F1B", {1: 1, 3: 4, 4: 4, 5: 6}),
        ("InterleavedZeroBubble", {3: 4}),
        ("ZBVZeroBubble", {1: 1, 5: 5}),
        ("DualPipeV", {1: 4, 4: 4, 5: 5}),
    ],
)
def test_empty_micro_batches_fill_up_what_a_schedule_needs(schedule, counts):
    parallel = ParallelSpec(pipeline=2, pipeline_schedule=schedule)
    assert {count: schedulable_micro_batches(count, parallel) for count in counts} == counts


def test_micro_batches_divide_by_what_cuts_them():
    assert token_multiple(ParallelSpec()) == 1
    assert token_multiple(ParallelSpec(tensor=4)) == 4
    assert token_multiple(ParallelSpec(context=2, tensor=2)) == 8
    assert token_multiple(ParallelSpec(context=2, context_balance="none")) == 2


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tensor": 4}, "trainer.parallel.tensor = 4 does not divide linear_num_key_heads = 2"),
        ({"context": 4}, "tensor = 1 × context = 4 does not divide linear_num_key_heads = 2"),
        ({"tensor": 2, "context": 2}, "tensor = 2 × context = 2 does not divide linear_num_key_heads = 2"),
    ],
)
def test_layouts_that_gated_delta_net_does_not_have(degrees, message):
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "linear_num_key_heads": 2}
    model = architecture({"model_type": "qwen3_5_text"} | sizes | heads)
    check_layout(model, ParallelSpec(fsdp=2, tensor=2), "trainer")
    check_layout(model, ParallelSpec(fsdp=2, context=2), "trainer")
    with pytest.raises(ValueError, match=message):
        check_layout(model, ParallelSpec(**degrees), "trainer")
