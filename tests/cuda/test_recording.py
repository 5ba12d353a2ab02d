"""The recorder sees what it looks for, and nothing else."""

import pytest

from tests.cuda.tracer import Tracer, needs_pretence

pytestmark = needs_pretence

RECORDED = {
    "nothing": {},
    "item": {"wait": 1},
    "float": {"wait": 1},
    "bool": {"wait": 1},
    "equal": {"wait": 1},
    "tolist": {"wait": 1},
    "synchronize": {"wait": 1},
    "event": {"wait": 1},
    "stream": {"wait": 1},
    "object": {"wait": 1},
    "to GPU": {"upload": 1},
    "array to GPU": {"upload": 1},
    "list to GPU": {"upload": 1},
    "pageable to GPU": {"upload": 1},
    "pinned, but waits": {"upload": 1},
    "pinned to GPU": {"async upload": 1},
    "many to GPU": {"upload": 2},
    "cpu": {"download": 1},
    "to host": {"async download": 1},
    "to pageable": {"download": 1},
    "to pinned": {"async download": 1},
    "inference": {"upload": 1, "download": 1},
}


@pytest.mark.parametrize("program", RECORDED)
def test_counts_what_blocks_the_host(program: str, tracer: Tracer):
    trace = tracer.ask("tests.cuda.planted", name=program)
    assert trace["error"] is None, trace["error"]
    assert not trace["defects"]
    assert trace["phases"][program]["counts"] == RECORDED[program]


@pytest.mark.parametrize(
    "program, defect",
    [
        ("host collective", "allreduce_ of a tensor on cpu"),
        ("host collective of many", "allgather_ of a tensor on cpu"),
        ("int16 collective", "allreduce_ of int16, which NCCL lacks"),
    ],
)
def test_reports_collectives_that_nccl_refuses(program: str, defect: str, tracer: Tracer):
    [found] = tracer.ask("tests.cuda.planted", name=program)["defects"]
    assert found.startswith(defect)


@pytest.mark.parametrize(
    "program, error",
    [
        ("two devices", "Expected all tensors to be on the same device"),
        ("mask", "DynamicOutputShapeException"),
        ("nonzero", "DynamicOutputShapeException"),
        ("unknown repeats", "DynamicOutputShapeException"),
        ("numpy", "can't convert cuda:0"),
    ],
)
def test_a_program_that_cuda_refuses_fails(program: str, error: str, tracer: Tracer):
    assert error in tracer.ask("tests.cuda.planted", name=program)["error"]
